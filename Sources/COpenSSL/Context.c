// The settings that connections share. A context changes only before its first connection.
#ifdef CO_HTTP
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "Internal.h"

// Writes a sentence with the oldest error of the queue, and empties the queue.
void ctls_describe(char *error, const char *what) {
  unsigned long code = ERR_get_error();
  const char *reason = code == 0 ? NULL : ERR_reason_error_string(code);
  snprintf(error, CTLS_ERROR_SIZE, "%s: %s", what, reason == NULL ? "unknown error of OpenSSL" : reason);
  ERR_clear_error();
}

static int use_certificate(SSL_CTX *ssl, const char *chain, const char *key, char *error) {
  char what[CTLS_ERROR_SIZE - 64];
  if (SSL_CTX_use_certificate_chain_file(ssl, chain) != 1) {
    snprintf(what, sizeof what, "the certificate chain in %s cannot be used; it must be PEM", chain);
  } else if (SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1) {
    snprintf(what, sizeof what, "the private key in %s cannot be used; it must be PEM, and of the certificate", key);
  } else if (SSL_CTX_check_private_key(ssl) != 1) {
    snprintf(what, sizeof what, "the private key in %s is not that of the certificate", key);
  } else {
    return 1;
  }
  ctls_describe(error, what);
  return 0;
}

static SSL_CTX *make(int is_server) {
  SSL_CTX *ssl = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
  if (ssl == NULL) return NULL;
  SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION);
  SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Buffers are released while nothing is in them: an idle connection has none.
  SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return ssl;
}

static int equals_name(const char *pattern, const char *name) {
  if (strcasecmp(pattern, name) == 0) return 1;
  const char *dot = strchr(name, '.');
  return pattern[0] == '*' && dot != NULL && strcasecmp(pattern + 1, dot) == 0;
}

static int on_server_name(SSL *ssl, int *alert, void *argument) {
  (void)alert;
  ctls_context *context = argument;
  const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
  for (size_t i = 0; name != NULL && i < context->names_count; i++) {
    if (!equals_name(context->names[i].name, name)) continue;
    SSL_set_SSL_CTX(ssl, context->names[i].ssl);
    break;
  }
  return SSL_TLSEXT_ERR_OK;
}

static int on_protocols(SSL *ssl, const unsigned char **out, unsigned char *length, const unsigned char *in,
                        unsigned count, void *argument) {
  (void)ssl;
  ctls_context *context = argument;
  if (context->protocols == NULL) return SSL_TLSEXT_ERR_NOACK;
  int found = SSL_select_next_proto((unsigned char **)(uintptr_t)out, length, context->protocols,
                                    (unsigned)context->protocols_count, in, count);
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static ctls_context *wrap(SSL_CTX *ssl, int is_server) {
  ctls_context *context = calloc(1, sizeof *context);
  if (context == NULL) {
    SSL_CTX_free(ssl);
    return NULL;
  }
  atomic_init(&context->references, 1);
  context->ssl = ssl;
  context->is_server = is_server;
  return context;
}

ctls_context *ctls_server_context(const char *chain, const char *key, char *error) {
  ERR_clear_error();
  SSL_CTX *ssl = make(1);
  ctls_context *context = ssl == NULL ? NULL : wrap(ssl, 1);
  if (context == NULL) {
    ctls_describe(error, "there was no memory for a context of TLS");
    return NULL;
  }
  if (!use_certificate(ssl, chain, key, error)) {
    ctls_context_release(context);
    return NULL;
  }
  SSL_CTX_set_session_id_context(ssl, (const unsigned char *)"coroutine", 9);
  SSL_CTX_set_tlsext_servername_callback(ssl, on_server_name);
  SSL_CTX_set_tlsext_servername_arg(ssl, context);
  SSL_CTX_set_alpn_select_cb(ssl, on_protocols, context);
  return context;
}

static int load_roots(SSL_CTX *ssl, const char *roots, char *error) {
  struct stat info;
  if (roots == NULL) {
    if (SSL_CTX_set_default_verify_paths(ssl) == 1) return 1;
    ctls_describe(error, "the system's trusted certificates cannot be read");
    return 0;
  }
  int is_folder = stat(roots, &info) == 0 && S_ISDIR(info.st_mode);
  if (SSL_CTX_load_verify_locations(ssl, is_folder ? NULL : roots, is_folder ? roots : NULL) == 1) return 1;
  char what[CTLS_ERROR_SIZE - 64];
  snprintf(what, sizeof what, "the trusted certificates in %s cannot be read; give a file or folder of PEM", roots);
  ctls_describe(error, what);
  return 0;
}

ctls_context *ctls_client_context(const char *roots, char *error) {
  ERR_clear_error();
  SSL_CTX *ssl = make(0);
  ctls_context *context = ssl == NULL ? NULL : wrap(ssl, 0);
  if (context == NULL) {
    ctls_describe(error, "there was no memory for a context of TLS");
    return NULL;
  }
  if (!load_roots(ssl, roots, error)) {
    ctls_context_release(context);
    return NULL;
  }
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, NULL);
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(ssl, ctls_new_session);
  return context;
}

void ctls_context_retain(ctls_context *context) { atomic_fetch_add(&context->references, 1); }

void ctls_context_release(ctls_context *context) {
  if (context == NULL || atomic_fetch_sub(&context->references, 1) != 1) return;
  for (size_t i = 0; i < context->names_count; i++) {
    SSL_CTX_free(context->names[i].ssl);
    free(context->names[i].name);
  }
  free(context->names);
  free(context->protocols);
  SSL_CTX_free(context->ssl);
  free(context);
}

int ctls_context_add_name(ctls_context *context, const char *name, const char *chain, const char *key, char *error) {
  ERR_clear_error();
  SSL_CTX *ssl = make(1);
  struct server_name *names = realloc(context->names, (context->names_count + 1) * sizeof *names);
  if (names != NULL) context->names = names;
  char *copy = strdup(name);
  if (ssl == NULL || names == NULL || copy == NULL || !use_certificate(ssl, chain, key, error)) {
    if (ssl == NULL || names == NULL || copy == NULL) ctls_describe(error, "there was no memory for a server name");
    SSL_CTX_free(ssl);
    free(copy);
    return 0;
  }
  SSL_CTX_set_session_id_context(ssl, (const unsigned char *)"coroutine", 9);
  SSL_CTX_set_alpn_select_cb(ssl, on_protocols, context);
  names[context->names_count++] = (struct server_name){copy, ssl};
  return 1;
}

int ctls_context_ask_client(ctls_context *context, const char *roots, int is_required, char *error) {
  ERR_clear_error();
  if (!load_roots(context->ssl, roots, error)) return 0;
  if (roots != NULL) SSL_CTX_set_client_CA_list(context->ssl, SSL_load_client_CA_file(roots));
  SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER | (is_required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
  ERR_clear_error();
  return 1;
}

int ctls_context_use_certificate(ctls_context *context, const char *chain, const char *key, char *error) {
  ERR_clear_error();
  return use_certificate(context->ssl, chain, key, error);
}

int ctls_context_set_protocols(ctls_context *context, const uint8_t *names, size_t count) {
  uint8_t *copy = malloc(count);
  if (copy == NULL) return 0;
  memcpy(copy, names, count);
  free(context->protocols);
  context->protocols = copy;
  context->protocols_count = count;
  return context->is_server || SSL_CTX_set_alpn_protos(context->ssl, names, (unsigned)count) == 0;
}

void ctls_context_keep_tickets(ctls_context *context, ctls_context *old) {
  unsigned char keys[80];
  if (SSL_CTX_get_tlsext_ticket_keys(old->ssl, keys, sizeof keys) == 1)
    SSL_CTX_set_tlsext_ticket_keys(context->ssl, keys, sizeof keys);
  OPENSSL_cleanse(keys, sizeof keys);
  ERR_clear_error();
}
#endif
