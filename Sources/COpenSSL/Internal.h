#ifndef COPENSSL_INTERNAL_H
#define COPENSSL_INTERNAL_H

#if !__has_include(<openssl/ssl.h>)
#error "OpenSSL is missing: scripts/setup http installs it (Debian's libssl-dev)"
#endif
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdatomic.h>

#include "COpenSSL.h"

struct server_name {
  char *name;
  SSL_CTX *ssl;
};

struct ctls_context {
  atomic_int references;
  SSL_CTX *ssl;
  int is_server;
  uint8_t *protocols;  // null if there are none
  size_t protocols_count;
  struct server_name *names;
  size_t names_count;
};

void ctls_describe(char *error, const char *what);
void ctls_context_retain(ctls_context *context);
int ctls_new_session(SSL *ssl, SSL_SESSION *session);
// Whether the certificate that the peer had shown is not valid any more.
int ctls_has_expired(SSL_SESSION *session);

#endif
