// One end of one connection: an SSL between two buffers.
//
//   peer -> room, received -> input -> SSL -> ctls_read
//   ctls_write -> SSL -> output -> ctls_take_output -> peer
//
// Invariants
//  1. All fields are used under `lock`, but for the bytes of the room: the one reader writes them, and only the
//     reader moves or frees the input.
//  2. An empty buffer has no memory once the reader waits, or the output was taken.
#ifdef CO_HTTP
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "Internal.h"

struct ctls {
  pthread_mutex_t lock;
  ctls_context *context;
  SSL *ssl;
  uint8_t *input, *output;
  size_t input_start, input_end, input_capacity;
  size_t output_count, output_capacity;
  int input_has_ended, has_failed;
  SSL_SESSION *latest;
  char error[CTLS_ERROR_SIZE];
};

// MARK: The BIO

static int bio_read(BIO *bio, char *bytes, int count) {
  ctls *tls = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  size_t available = tls->input_end - tls->input_start;
  if (available == 0) {
    if (tls->input_has_ended) return 0;
    BIO_set_retry_read(bio);
    return -1;
  }
  size_t taken = available < (size_t)count ? available : (size_t)count;
  memcpy(bytes, tls->input + tls->input_start, taken);
  tls->input_start += taken;
  return (int)taken;
}

static int bio_write(BIO *bio, const char *bytes, int count) {
  ctls *tls = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  size_t needed = tls->output_count + (size_t)count;
  if (needed > tls->output_capacity) {
    size_t capacity = needed < 2048 ? 2048 : needed + needed / 2;
    uint8_t *output = realloc(tls->output, capacity);
    if (output == NULL) return -1;
    tls->output = output;
    tls->output_capacity = capacity;
  }
  memcpy(tls->output + tls->output_count, bytes, (size_t)count);
  tls->output_count = needed;
  return count;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
  (void)number;
  (void)pointer;
  ctls *tls = BIO_get_data(bio);
  switch (command) {
  case BIO_CTRL_FLUSH: return 1;
  case BIO_CTRL_EOF: return tls->input_has_ended && tls->input_start == tls->input_end;
  default: return 0;
  }
}

// Written once, by `make_once`.
static BIO_METHOD *method;
static int ssl_index = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_once(void) {
  method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "coroutine");
  if (method == NULL) return;
  BIO_meth_set_read(method, bio_read);
  BIO_meth_set_write(method, bio_write);
  BIO_meth_set_ctrl(method, bio_control);
  ssl_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

int ctls_new_session(SSL *ssl, SSL_SESSION *session) {
  ctls *tls = SSL_get_ex_data(ssl, ssl_index);
  if (tls == NULL) return 0;
  SSL_SESSION_free(tls->latest);
  tls->latest = session;
  return 1;
}

// Returns 1, or 0 if there is no memory: then no name would be checked.
static int set_host(SSL *ssl, const char *host) {
  unsigned char address[16];
  X509_VERIFY_PARAM *parameters = SSL_get0_param(ssl);
  if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
    return X509_VERIFY_PARAM_set1_ip_asc(parameters, host);
  SSL_set_tlsext_host_name(ssl, host);
  // A name in the subject alone counts for nothing: an authority may not have checked it (RFC 9525, 2).
  X509_VERIFY_PARAM_set_hostflags(parameters,
                                  X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  return SSL_set1_host(ssl, host);
}

// The most bytes of output that a reader adds to: answers that the peer asks for, and does not read. Beyond what a few
// writers add.
enum { MOST_UNREAD = 1 << 20 };

ctls *ctls_create(ctls_context *context, const char *host) {
  ERR_clear_error();
  pthread_once(&once, make_once);
  ctls *tls = calloc(1, sizeof *tls);
  SSL *ssl = SSL_new(context->ssl);
  BIO *bio = method == NULL ? NULL : BIO_new(method);
  if (tls == NULL || ssl == NULL || bio == NULL) {
    free(tls);
    SSL_free(ssl);
    BIO_free(bio);
    ERR_clear_error();
    return NULL;
  }
  pthread_mutex_init(&tls->lock, NULL);
  ctls_context_retain(context);
  tls->context = context;
  tls->ssl = ssl;
  BIO_set_data(bio, tls);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_ex_data(ssl, ssl_index, tls);
  if (host != NULL && set_host(ssl, host) != 1) {
    ctls_destroy(tls);
    return NULL;
  }
  if (context->is_server) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
  }
  return tls;
}

void ctls_destroy(ctls *tls) {
  if (tls == NULL) return;
  // Or OpenSSL would take the missing end for a failure, and forbid to resume the session.
  if (!tls->has_failed) SSL_set_shutdown(tls->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
  SSL_free(tls->ssl);
  SSL_SESSION_free(tls->latest);
  free(tls->input);
  free(tls->output);
  pthread_mutex_destroy(&tls->lock);
  ctls_context_release(tls->context);
  free(tls);
  ERR_clear_error();
}

// MARK: Operations

// What to do about an error of which OpenSSL names a detail; null if there is nothing to add.
static const char *advice(unsigned long code, int is_server) {
  if (code == 0 || ERR_GET_LIB(code) != ERR_LIB_SSL) return NULL;
  switch (ERR_GET_REASON(code)) {
  case SSL_R_HTTP_REQUEST:
  case SSL_R_HTTPS_PROXY_REQUEST: return "TLS failed: the client speaks HTTP without TLS; it must use https";
  case SSL_R_WRONG_VERSION_NUMBER:
    return is_server ? "TLS failed: the client does not speak TLS 1.2 or 1.3; check its port and its version"
                     : "TLS failed: the peer does not speak TLS; check the port, or connect without TLS";
  default: return NULL;
  }
}

static void describe(ctls *tls) {
  long verified = SSL_get_verify_result(tls->ssl);
  const char *what = advice(ERR_peek_error(), tls->context->is_server);
  // The first failure is the cause of the later ones.
  if (tls->has_failed) {
    ERR_clear_error();
  } else if (verified != X509_V_OK && ERR_peek_error() != 0) {
    int is_other = verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH;
    snprintf(tls->error, sizeof tls->error, "the peer's certificate is not trusted: %s%s",
             X509_verify_cert_error_string(verified), is_other ? "; no subjectAltName of it is the host" : "");
    ERR_clear_error();
  } else if (ERR_peek_error() == 0 || ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    snprintf(tls->error, sizeof tls->error, "the stream ended without the end of TLS; bytes may have been cut off");
    ERR_clear_error();
  } else {
    ctls_describe(tls->error, what == NULL ? "TLS failed" : what);
  }
  tls->has_failed = 1;
}

static ctls_result result_of(ctls *tls, int code) {
  switch (SSL_get_error(tls->ssl, code)) {
  case SSL_ERROR_NONE: return CTLS_DONE;
  case SSL_ERROR_WANT_READ: return CTLS_WANTS_INPUT;
  case SSL_ERROR_ZERO_RETURN: return CTLS_ENDED;
  default: describe(tls); return CTLS_FAILED;
  }
}

ctls_result ctls_handshake(ctls *tls) {
  pthread_mutex_lock(&tls->lock);
  ERR_clear_error();
  ctls_result result = result_of(tls, SSL_do_handshake(tls->ssl));
  pthread_mutex_unlock(&tls->lock);
  return result;
}

ctls_result ctls_read(ctls *tls, void *bytes, size_t count, size_t *done) {
  pthread_mutex_lock(&tls->lock);
  ERR_clear_error();
  *done = 0;
  if (tls->output_count > MOST_UNREAD) {
    static const char words[] = "the peer does not read the answers that it asks for";
    if (!tls->has_failed) memcpy(tls->error, words, sizeof words);
    tls->has_failed = 1;
    pthread_mutex_unlock(&tls->lock);
    return CTLS_FAILED;
  }
  int code = SSL_read_ex(tls->ssl, bytes, count, done);
  ctls_result result = code == 1 ? CTLS_DONE : result_of(tls, code);
  pthread_mutex_unlock(&tls->lock);
  return result;
}

ctls_result ctls_write(ctls *tls, const void *bytes, size_t count) {
  pthread_mutex_lock(&tls->lock);
  ERR_clear_error();
  size_t done = 0;
  int code = SSL_write_ex(tls->ssl, bytes, count, &done);
  ctls_result result = code == 1 ? CTLS_DONE : result_of(tls, code);
  pthread_mutex_unlock(&tls->lock);
  return result;
}

void ctls_shutdown(ctls *tls) {
  pthread_mutex_lock(&tls->lock);
  ERR_clear_error();
  if (!tls->has_failed && SSL_is_init_finished(tls->ssl)) SSL_shutdown(tls->ssl);
  ERR_clear_error();
  pthread_mutex_unlock(&tls->lock);
}

void ctls_copy_error(ctls *tls, char *error) {
  pthread_mutex_lock(&tls->lock);
  memcpy(error, tls->error, sizeof tls->error);
  pthread_mutex_unlock(&tls->lock);
}

// MARK: The peer's bytes

void *ctls_room(ctls *tls, size_t count) {
  pthread_mutex_lock(&tls->lock);
  size_t kept = tls->input_end - tls->input_start;
  if (kept > 0 && tls->input_start > 0) memmove(tls->input, tls->input + tls->input_start, kept);
  tls->input_start = 0;
  tls->input_end = kept;
  void *room = NULL;
  if (kept + count > tls->input_capacity) {
    uint8_t *input = realloc(tls->input, kept + count);
    if (input != NULL) {
      tls->input = input;
      tls->input_capacity = kept + count;
    }
  }
  if (kept + count <= tls->input_capacity) room = tls->input + kept;
  pthread_mutex_unlock(&tls->lock);
  return room;
}

void ctls_release_room(ctls *tls) {
  pthread_mutex_lock(&tls->lock);
  if (tls->input_start == tls->input_end) {
    free(tls->input);
    tls->input = NULL;
    tls->input_start = tls->input_end = tls->input_capacity = 0;
  }
  pthread_mutex_unlock(&tls->lock);
}

void ctls_received(ctls *tls, size_t count) {
  pthread_mutex_lock(&tls->lock);
  if (count == 0) tls->input_has_ended = 1;
  tls->input_end += count;
  pthread_mutex_unlock(&tls->lock);
}

void *ctls_take_output(ctls *tls, size_t *count) {
  pthread_mutex_lock(&tls->lock);
  void *output = tls->output_count > 0 ? tls->output : NULL;
  *count = tls->output_count;
  if (output != NULL) {
    tls->output = NULL;
    tls->output_count = tls->output_capacity = 0;
  }
  pthread_mutex_unlock(&tls->lock);
  return output;
}

int ctls_has_output(ctls *tls) {
  pthread_mutex_lock(&tls->lock);
  int result = tls->output_count > 0;
  pthread_mutex_unlock(&tls->lock);
  return result;
}

// MARK: What was negotiated

const char *ctls_version(ctls *tls) { return SSL_get_version(tls->ssl); }

const char *ctls_cipher(ctls *tls) { return SSL_get_cipher_name(tls->ssl); }

const char *ctls_server_name(ctls *tls) { return SSL_get_servername(tls->ssl, TLSEXT_NAMETYPE_host_name); }

size_t ctls_protocol(ctls *tls, const uint8_t **name) {
  unsigned length = 0;
  SSL_get0_alpn_selected(tls->ssl, name, &length);
  return length;
}

int ctls_is_resumed(ctls *tls) { return SSL_session_reused(tls->ssl); }

size_t ctls_peer_certificate(ctls *tls, uint8_t **bytes) {
  X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
  *bytes = NULL;
  if (certificate == NULL) return 0;
  int size = i2d_X509(certificate, NULL);
  uint8_t *copy = size <= 0 ? NULL : malloc((size_t)size);
  if (copy == NULL) return 0;
  unsigned char *end = copy;
  i2d_X509(certificate, &end);
  *bytes = copy;
  return (size_t)size;
}

void *ctls_take_session(ctls *tls) {
  pthread_mutex_lock(&tls->lock);
  SSL_SESSION *session = tls->latest;
  tls->latest = NULL;
  pthread_mutex_unlock(&tls->lock);
  return session;
}

void ctls_use_session(ctls *tls, void *session) {
  // The whole handshake then checks what the server shows now.
  if (ctls_has_expired(session)) return;
  SSL_set_session(tls->ssl, session);
  ERR_clear_error();
}

void ctls_session_release(void *session) { SSL_SESSION_free(session); }
#endif
