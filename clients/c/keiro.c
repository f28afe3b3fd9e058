/* SPDX-License-Identifier: Apache-2.0 OR MIT */

#define _POSIX_C_SOURCE 200809L

#include "keiro.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 2, TOKEN_VERSION = 1, SENDS = 1, RECEIVES = 2, ACK_BYTES = 18, HEADER_BYTES = 12, READ_BYTES = 64 << 10 };

struct keiro {
    int socket;
    SSL_CTX *context;
    SSL *ssl;
    uint64_t next_id, unfinished;
    unsigned char *input; /* read and not used yet */
    size_t input_length, input_capacity;
    int ended;
    char error[KEIRO_ERROR_BYTES];
};

static int fail(struct keiro *k, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(k->error, sizeof k->error, format, arguments);
    va_end(arguments);
    return -1;
}

static int fail_tls(struct keiro *k, const char *what) {
    unsigned long code = ERR_get_error();
    long verified = k->ssl ? SSL_get_verify_result(k->ssl) : X509_V_OK;
    const char *why = code ? ERR_reason_error_string(code) : NULL;
    if (verified != X509_V_OK)
        why = X509_verify_cert_error_string(verified);
    ERR_clear_error();
    return fail(k, "%s: %s", what, why ? why : "the connection was closed");
}

static void put(unsigned char *to, uint64_t number, int bytes) {
    while (bytes-- > 0) {
        to[bytes] = (unsigned char)number;
        number >>= 8;
    }
}

static uint64_t number_of(const unsigned char *from, int bytes) {
    uint64_t number = 0;
    while (bytes-- > 0)
        number = number << 8 | *from++;
    return number;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t until(int timeout_ms) { return timeout_ms < 0 ? -1 : now_ms() + timeout_ms; }

/* Waits until the socket is ready. 1; 0: the time has passed; -1. */
static int wait_for(struct keiro *k, short events, int64_t until_ms) {
    for (;;) {
        int64_t left = until_ms < 0 ? -1 : until_ms - now_ms();
        struct pollfd ready = {.fd = k->socket, .events = events};
        int count = poll(&ready, 1, until_ms < 0 ? -1 : left < 0 ? 0 : (int)left);
        if (count >= 0)
            return count > 0;
        if (errno != EINTR)
            return fail(k, "poll: %s", strerror(errno));
    }
}

/* The events after which a call that gave result may be repeated; 0: it has ended; -1. */
static int wanted_after(struct keiro *k, int result) {
    switch (SSL_get_error(k->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return POLLIN;
    case SSL_ERROR_WANT_WRITE:
        return POLLOUT;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        return fail_tls(k, "the connection failed");
    }
}

/* Reads what there is without waiting. 1: something came; 0: nothing now, or the end; -1. */
static int read_some(struct keiro *k) {
    if (k->ended)
        return 0;
    if (k->input_capacity - k->input_length < READ_BYTES) {
        size_t capacity = 2 * k->input_capacity + READ_BYTES;
        unsigned char *larger = realloc(k->input, capacity);
        if (!larger)
            return fail(k, "out of memory");
        k->input = larger;
        k->input_capacity = capacity;
    }
    ERR_clear_error();
    int count = SSL_read(k->ssl, k->input + k->input_length, READ_BYTES);
    if (count > 0) {
        k->input_length += (size_t)count;
        return 1;
    }
    int wanted = wanted_after(k, count);
    k->ended = wanted == 0;
    return wanted < 0 ? -1 : 0;
}

/* Reads until count bytes are there. 1; 0: the time has passed; -1. */
static int fill(struct keiro *k, size_t count, int64_t until_ms) {
    while (k->input_length < count) {
        int some = read_some(k);
        if (some < 0)
            return -1;
        if (some > 0)
            continue;
        if (k->ended)
            return fail(k, "the gateway closed the connection; its log says why");
        int ready = wait_for(k, POLLIN, until_ms);
        if (ready <= 0)
            return ready;
    }
    return 1;
}

static void consume(struct keiro *k, size_t count) {
    k->input_length -= count;
    memmove(k->input, k->input + count, k->input_length);
}

/* Writes all of it. Acks that come meanwhile are read, so that neither side waits for the other. */
static int write_all(struct keiro *k, const unsigned char *bytes, size_t length) {
    while (length > 0) {
        ERR_clear_error();
        int count = SSL_write(k->ssl, bytes, length > READ_BYTES ? READ_BYTES : (int)length);
        if (count > 0) {
            bytes += count;
            length -= (size_t)count;
            continue;
        }
        int wanted = wanted_after(k, count);
        if (wanted == 0 || k->ended)
            return fail(k, "the gateway closed the connection; its log says why");
        if (wanted < 0 || read_some(k) < 0 || wait_for(k, POLLOUT | POLLIN, -1) < 0)
            return -1;
    }
    return 0;
}

static int connect_tcp(struct keiro *k, const char *host, const char *port, int64_t until_ms) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int wrong = getaddrinfo(host, port, &hints, &found);
    if (wrong)
        return fail(k, "%s: %s", host, gai_strerror(wrong));
    for (struct addrinfo *one = found; one; one = one->ai_next) {
        int error = 0, on = 1;
        socklen_t size = sizeof error;
        k->socket = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
        if (k->socket < 0) {
            fail(k, "socket: %s", strerror(errno));
            continue;
        }
        fcntl(k->socket, F_SETFL, O_NONBLOCK);
        setsockopt(k->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (connect(k->socket, one->ai_addr, one->ai_addrlen) < 0)
            error = errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            if (wait_for(k, POLLOUT, until_ms) > 0)
                getsockopt(k->socket, SOL_SOCKET, SO_ERROR, &error, &size);
        }
        if (!error)
            break;
        fail(k, "cannot connect to %s port %s: %s", host, port, strerror(error));
        close(k->socket);
        k->socket = -1;
    }
    freeaddrinfo(found);
    return k->socket < 0 ? -1 : 0;
}

static int start_tls(struct keiro *k, const struct keiro_options *o, const char *host, int64_t until_ms) {
    const char *name = o->server_name ? o->server_name : host;
    unsigned char address[16];
    int is_address = inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
    k->context = SSL_CTX_new(TLS_client_method());
    if (!k->context || !SSL_CTX_set_min_proto_version(k->context, TLS1_3_VERSION) ||
        !SSL_CTX_load_verify_locations(k->context, o->ca_file, NULL))
        return fail_tls(k, o->ca_file);
    SSL_CTX_set_verify(k->context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(k->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    k->ssl = SSL_new(k->context);
    if (!k->ssl || !SSL_set_fd(k->ssl, k->socket))
        return fail_tls(k, "TLS");
    if (is_address ? !X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(k->ssl), name)
                   : !SSL_set1_host(k->ssl, name) || !SSL_set_tlsext_host_name(k->ssl, name))
        return fail_tls(k, name);
    for (;;) {
        ERR_clear_error();
        int result = SSL_connect(k->ssl);
        if (result == 1)
            return 0;
        int wanted = wanted_after(k, result);
        if (wanted <= 0)
            return wanted < 0 ? -1 : fail(k, "the gateway closed the connection");
        int ready = wait_for(k, (short)wanted, until_ms);
        if (ready <= 0)
            return ready < 0 ? -1 : fail(k, "the gateway does not answer");
    }
}

/* Token and hello, and the gateway's answer. */
static int open_protocol(struct keiro *k, const struct keiro_options *o, int role, int64_t until_ms) {
    unsigned char bytes[512];
    size_t token = strcspn(o->token, " \t\r\n"), app = strlen(o->app), length = 0;
    if (token < 1 || token > 255 || app < 1 || app > 64)
        return fail(k, "a token has 1 to 255 bytes, an application's name 1 to 64");
    length = (size_t)sprintf((char *)bytes, "KEIT%c%c%.*sKEIM%c%c%c%s", TOKEN_VERSION, (int)token, (int)token,
                             o->token, VERSION, role, (int)app, o->app);
    if (write_all(k, bytes, length) < 0)
        return -1;
    int answered = fill(k, 8, until_ms);
    if (answered > 0 && (memcmp(k->input, "KEIM", 4) != 0 || k->input[4] < 1 || k->input[4] > VERSION))
        return fail(k, "this is not the message port of a Keiro gateway, or it has another version");
    size_t text = answered > 0 ? (size_t)number_of(k->input + 6, 2) : 0;
    if (answered > 0)
        answered = fill(k, 8 + text, until_ms);
    if (answered <= 0)
        return answered < 0 ? -1 : fail(k, "the gateway does not answer");
    if (k->input[5] != 0)
        return fail(k, "the gateway refused the connection: %.*s", (int)text, (char *)k->input + 8);
    consume(k, 8 + text);
    return 0;
}

static struct keiro *open_connection(const struct keiro_options *o, int role, char *error) {
    struct keiro *k = calloc(1, sizeof *k);
    const char *colon = strrchr(o->address, ':');
    char host[256] = "";
    error[0] = 0;
    if (!k || !colon || colon - o->address >= (long)sizeof host) {
        snprintf(error, KEIRO_ERROR_BYTES, "%s", k ? "an address is HOST:PORT" : "out of memory");
        free(k);
        return NULL;
    }
    size_t start = o->address[0] == '[', length = (size_t)(colon - o->address);
    if (start && (length < 2 || colon[-1] != ']')) {
        snprintf(error, KEIRO_ERROR_BYTES, "an IPv6 address is [ADDRESS]:PORT");
        free(k);
        return NULL;
    }
    memcpy(host, o->address + start, length - 2 * start);
    int64_t limit = until(o->timeout_ms ? o->timeout_ms : 10000);
    k->socket = -1;
    if (connect_tcp(k, host, colon + 1, limit) < 0 || start_tls(k, o, host, limit) < 0 ||
        open_protocol(k, o, role, limit) < 0) {
        snprintf(error, KEIRO_ERROR_BYTES, "%s", k->error);
        keiro_close(k);
        return NULL;
    }
    return k;
}

struct keiro *keiro_sender(const struct keiro_options *o, char *error) {
    return open_connection(o, SENDS, error);
}

struct keiro *keiro_receiver(const struct keiro_options *o, char *error) {
    return open_connection(o, RECEIVES, error);
}

int keiro_send(struct keiro *k, const void *body, size_t length, uint64_t *id) {
    unsigned char header[HEADER_BYTES];
    if (length < 1 || length > KEIRO_BODY_BYTES_MAX)
        return fail(k, "a message has 1 to %u bytes", KEIRO_BODY_BYTES_MAX);
    put(header, length, 4);
    put(header + 4, ++k->next_id, 8);
    *id = k->next_id;
    k->unfinished++;
    return write_all(k, header, sizeof header) < 0 ? -1 : write_all(k, body, length);
}

uint64_t keiro_unfinished(const struct keiro *k) { return k->unfinished; }

int keiro_outcome(struct keiro *k, int timeout_ms, struct keiro_outcome *outcome) {
    if (k->unfinished == 0)
        return 0;
    int there = fill(k, ACK_BYTES, until(timeout_ms));
    if (there <= 0)
        return there;
    outcome->id = number_of(k->input, 8);
    outcome->kind = k->input[8] <= KEIRO_REFUSED ? (enum keiro_outcome_kind)k->input[8] : KEIRO_UNKNOWN;
    outcome->reason = k->input[9];
    outcome->delay_nanos = number_of(k->input + 10, 8);
    consume(k, ACK_BYTES);
    k->unfinished--;
    return 1;
}

int keiro_receive(struct keiro *k, int timeout_ms, uint64_t *id, void **body, size_t *length) {
    int64_t limit = until(timeout_ms);
    int there = fill(k, HEADER_BYTES, limit);
    if (there <= 0)
        return there;
    *length = (size_t)number_of(k->input, 4);
    if (*length > KEIRO_BODY_BYTES_MAX)
        return fail(k, "a message of %zu bytes is longer than messages are", *length);
    there = fill(k, HEADER_BYTES + *length, limit);
    if (there <= 0)
        return there;
    *id = number_of(k->input + 4, 8);
    *body = malloc(*length);
    if (!*body)
        return fail(k, "out of memory");
    memcpy(*body, k->input + HEADER_BYTES, *length);
    consume(k, HEADER_BYTES + *length);
    return 1;
}

const char *keiro_error(const struct keiro *k) { return k->error; }

const char *keiro_outcome_name(enum keiro_outcome_kind kind) {
    static const char *const names[] = {"delivered", "expired", "refused"};
    return kind <= KEIRO_REFUSED ? names[kind] : "unknown";
}

void keiro_close(struct keiro *k) {
    if (!k)
        return;
    SSL_free(k->ssl);
    SSL_CTX_free(k->context);
    if (k->socket >= 0)
        close(k->socket);
    free(k->input);
    free(k);
}
