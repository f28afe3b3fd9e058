/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Sends lines of standard input as messages, or prints messages that come.
 *
 *     cc -o example example.c keiro.c -lssl -lcrypto
 *     ./example send 192.0.2.1:7602 orders sensor.token message-cert.pem < lines
 *     ./example receive 192.0.2.2:7602 orders display.token message-cert.pem 3 */

#define _POSIX_C_SOURCE 200809L

#include "keiro.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void send_lines(const struct keiro_options *options) {
    char error[KEIRO_ERROR_BYTES], *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    struct keiro *sender = keiro_sender(options, error);
    if (!sender)
        die(error);
    while ((length = getline(&line, &capacity, stdin)) > 0) {
        uint64_t id;
        if (line[length - 1] == '\n')
            length--;
        if (keiro_send(sender, line, (size_t)length, &id) < 0)
            die(keiro_error(sender));
    }
    while (keiro_unfinished(sender) > 0) {
        struct keiro_outcome outcome;
        if (keiro_outcome(sender, -1, &outcome) < 0)
            die(keiro_error(sender));
        printf("%" PRIu64 " %s\n", outcome.id, keiro_outcome_name(outcome.kind));
    }
    free(line);
    keiro_close(sender);
}

static void receive(const struct keiro_options *options, int count) {
    char error[KEIRO_ERROR_BYTES];
    struct keiro *receiver = keiro_receiver(options, error);
    if (!receiver)
        die(error);
    while (count-- > 0) {
        uint64_t id;
        void *body;
        size_t length;
        if (keiro_receive(receiver, -1, &id, &body, &length) < 0)
            die(keiro_error(receiver));
        printf("%" PRIu64 " %.*s\n", id, (int)length, (char *)body);
        fflush(stdout);
        free(body);
    }
    keiro_close(receiver);
}

int main(int argc, char **argv) {
    char token[300] = "";
    if (argc < 6)
        die("usage: example send|receive ADDRESS APP TOKEN_FILE CA_FILE [COUNT]");
    signal(SIGPIPE, SIG_IGN);
    FILE *file = fopen(argv[4], "r");
    if (!file || !fgets(token, sizeof token, file))
        die("cannot read the token file");
    fclose(file);
    struct keiro_options options = {.address = argv[2], .app = argv[3], .token = token, .ca_file = argv[5]};
    if (strcmp(argv[1], "send") == 0)
        send_lines(&options);
    else
        receive(&options, argc > 6 ? atoi(argv[6]) : 1);
    return 0;
}
