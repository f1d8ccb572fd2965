// TLS by OpenSSL 3, over memory: no call reads or writes a socket, and none blocks.
//
// Each function empties OpenSSL's error queue, which belongs to the thread, before it calls OpenSSL, and reads it
// before it returns. So no coroutine sees the errors of another one. A `ctls` may be used by two threads at once: it
// has a lock, which is held within a call only.
#ifndef COPENSSL_H
#define COPENSSL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CTLS_ERROR_SIZE = 256 };

// The certificates and settings of connections; counted references.
typedef struct ctls_context ctls_context;
// One end of one connection.
typedef struct ctls ctls;

// Each returns null after a failure, and writes a sentence into `error`, which has CTLS_ERROR_SIZE bytes.
ctls_context *ctls_server_context(const char *chain, const char *key, char *error);
// `roots` is a file or a folder of PEM certificates; null means the system's.
ctls_context *ctls_client_context(const char *roots, char *error);
void ctls_context_release(ctls_context *context);

// Each returns 1, or 0 after a failure.
// Certificates for a server name, which may begin with "*."; a name itself goes before a pattern, a later one before an
// earlier one.
int ctls_context_add_name(ctls_context *context, const char *name, const char *chain, const char *key, char *error);
// The server asks for a certificate of the client, which one of `roots` must have issued: at all names that were added.
// Sessions that were made under another rule, or with other roots, are not resumed.
int ctls_context_ask_client(ctls_context *context, const char *roots, int is_required, char *error);
// The certificate of a client.
int ctls_context_use_certificate(ctls_context *context, const char *chain, const char *key, char *error);
// Names of application protocols, each behind a byte with its length; in the order of preference.
int ctls_context_set_protocols(ctls_context *context, const uint8_t *names, size_t count);
// Lets sessions of `old` be resumed, after a reload of certificates; but see `ctls_context_ask_client`.
void ctls_context_keep_tickets(ctls_context *context, ctls_context *old);

// Null if no memory is left. `host` of a client: its name is sent and checked; null on a server.
ctls *ctls_create(ctls_context *context, const char *host);
void ctls_destroy(ctls *tls);

typedef enum ctls_result { CTLS_DONE, CTLS_WANTS_INPUT, CTLS_ENDED, CTLS_FAILED } ctls_result;

ctls_result ctls_handshake(ctls *tls);
ctls_result ctls_read(ctls *tls, void *bytes, size_t count, size_t *done);
ctls_result ctls_write(ctls *tls, const void *bytes, size_t count);
// Adds the message that ends the output.
void ctls_shutdown(ctls *tls);
// The sentence of the last failure; at most CTLS_ERROR_SIZE bytes.
void ctls_copy_error(ctls *tls, char *error);

// Memory for `count` bytes from the peer; null if none is left. Valid until the next call of this or the next one.
void *ctls_room(ctls *tls, size_t count);
void ctls_release_room(ctls *tls);
// `count` bytes were written there; 0 means that the peer has ended its output.
void ctls_received(ctls *tls, size_t count);
// The bytes for the peer, which the caller frees; null if there are none.
void *ctls_take_output(ctls *tls, size_t *count);
int ctls_has_output(ctls *tls);

// What was negotiated. Strings are valid as long as `tls`; null if there is none.
const char *ctls_version(ctls *tls);
const char *ctls_cipher(ctls *tls);
const char *ctls_server_name(ctls *tls);
size_t ctls_protocol(ctls *tls, const uint8_t **name);
int ctls_is_resumed(ctls *tls);
// The peer's certificate, DER, which the caller frees.
size_t ctls_peer_certificate(ctls *tls, uint8_t **bytes);

// Sessions of a client. `ctls_take_session` returns the latest one, or null; the caller releases it.
void *ctls_take_session(ctls *tls);
void ctls_use_session(ctls *tls, void *session);
void ctls_session_release(void *session);

#ifdef __cplusplus
}
#endif
#endif
