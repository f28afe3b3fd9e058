/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Sends and receives messages through a Keiro gateway, from any host. Needs OpenSSL 1.1.1 or newer:
 * compile keiro.c with the program and link with -lssl -lcrypto.
 *
 *     struct keiro_options options = {.address = "192.0.2.1:7602", .app = "orders",
 *                                     .token = token, .ca_file = "message-cert.pem"};
 *     struct keiro *sender = keiro_sender(&options, error);
 *     keiro_send(sender, body, length, &id);
 *     keiro_outcome(sender, -1, &outcome);
 *     keiro_close(sender);
 *
 * A connection is for one thread. A program that uses it should ignore SIGPIPE. docs/message-socket.md
 * describes the protocol. */

#ifndef KEIRO_H
#define KEIRO_H

#include <stddef.h>
#include <stdint.h>

#define KEIRO_BODY_BYTES_MAX (16u << 20)
#define KEIRO_ERROR_BYTES 1200

struct keiro; /* one connection */

struct keiro_options {
    const char *address;     /* HOST:PORT of the gateway's [message_tls] */
    const char *app;         /* 1 to 64 bytes */
    const char *token;       /* the line in the client's token file */
    const char *ca_file;     /* the gateway's certificate, or its authority's, in PEM */
    const char *server_name; /* name in the certificate; NULL: the host in address */
    int timeout_ms;          /* for connecting and the gateway's answer; 0: ten seconds */
};

enum keiro_outcome_kind {
    KEIRO_DELIVERED = 0,
    KEIRO_EXPIRED = 1,
    KEIRO_REFUSED = 2,
    KEIRO_UNKNOWN = 3, /* and every other number */
};

struct keiro_outcome {
    uint64_t id;
    enum keiro_outcome_kind kind;
    uint8_t reason;       /* why it was refused or is unknown, as in docs/message-socket.md; else 0 */
    uint64_t delay_nanos; /* 0 then */
};

/* Connects. NULL: it failed, and error, of KEIRO_ERROR_BYTES, says why. */
struct keiro *keiro_sender(const struct keiro_options *options, char *error);
struct keiro *keiro_receiver(const struct keiro_options *options, char *error);

/* Hands one message over; waits while the gateway takes none. 0, or -1. */
int keiro_send(struct keiro *sender, const void *body, size_t length, uint64_t *id);

/* Messages without an outcome that was read. */
uint64_t keiro_unfinished(const struct keiro *sender);

/* The next outcome, in the order in which they become known. 1: there is one; 0: not within timeout_ms
 * (-1: no limit), or none is missing; -1: the connection failed. */
int keiro_outcome(struct keiro *sender, int timeout_ms, struct keiro_outcome *outcome);

/* The next message; the caller frees *body. 1, 0 or -1 as above; a message counts as delivered once the
 * gateway has written it to this connection. */
int keiro_receive(struct keiro *receiver, int timeout_ms, uint64_t *id, void **body, size_t *length);

/* Why the last call on this connection returned -1. */
const char *keiro_error(const struct keiro *connection);

/* "delivered", "expired", "refused" or "unknown". */
const char *keiro_outcome_name(enum keiro_outcome_kind kind);

/* Ends the connection. Outcomes that are missing will not come. */
void keiro_close(struct keiro *connection);

#endif
