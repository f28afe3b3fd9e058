// SPDX-License-Identifier: Apache-2.0 OR MIT

// Sends lines of standard input as messages, or prints messages that come.
//
//	example send 192.0.2.1:7602 orders sensor.token message-cert.pem < lines
//	example receive 192.0.2.2:7602 orders display.token message-cert.pem 3
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"

	keiro "github.com/keiro-net/keiro/clients/go"
)

func main() {
	if len(os.Args) < 6 {
		fail("usage: example send|receive ADDRESS APP TOKEN_FILE CA_FILE [COUNT]")
	}
	token, err := os.ReadFile(os.Args[4])
	check(err)
	ca, err := os.ReadFile(os.Args[5])
	check(err)
	options := keiro.Options{Address: os.Args[2], App: os.Args[3], Token: string(token), CA: ca}
	if os.Args[1] == "send" {
		send(options)
	} else {
		receive(options)
	}
}

func send(options keiro.Options) {
	sender, err := keiro.NewSender(options)
	check(err)
	defer sender.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		_, err := sender.Send(lines.Bytes())
		check(err)
	}
	for sender.Unfinished() > 0 {
		outcome, err := sender.Outcome()
		check(err)
		fmt.Println(outcome.ID, outcome.Name, outcome.Reason)
	}
}

func receive(options keiro.Options) {
	count, err := strconv.Atoi(os.Args[6])
	check(err)
	receiver, err := keiro.NewReceiver(options)
	check(err)
	defer receiver.Close()
	for ; count > 0; count-- {
		message, err := receiver.Receive()
		check(err)
		fmt.Printf("%d %s\n", message.ID, message.Body)
	}
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(what any) {
	fmt.Fprintln(os.Stderr, what)
	os.Exit(1)
}
