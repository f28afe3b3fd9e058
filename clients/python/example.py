#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sends lines of standard input as messages, or prints messages that come.

    example.py send 192.0.2.1:7602 orders sensor.token message-cert.pem < lines
    example.py receive 192.0.2.2:7602 orders display.token message-cert.pem 3
"""

import sys

import keiro


def send(address, app, token, ca):
    with keiro.Sender(address, app, token=token, ca=ca) as sender:
        for line in sys.stdin.buffer:
            sender.send(line.rstrip(b"\n"))
        for outcome in sender.outcomes():
            print(outcome.id, outcome.name, outcome.reason or "", flush=True)


def receive(address, app, token, ca, count):
    with keiro.Receiver(address, app, token=token, ca=ca) as receiver:
        for _ in range(count):
            message = receiver.receive()
            if message is None:
                sys.exit("the gateway has ended the connection")
            sys.stdout.buffer.write(b"%d %s\n" % (message.id, message.body))
            sys.stdout.flush()


def main():
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    role, address, app, token_file, ca = sys.argv[1:6]
    with open(token_file, encoding="ascii") as file:
        token = file.readline()
    try:
        if role == "send":
            send(address, app, token, ca)
        else:
            receive(address, app, token, ca, int(sys.argv[6]))
    except (keiro.Error, OSError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
