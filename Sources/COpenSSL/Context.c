// The settings that connections share. A context changes only before its first connection.
#ifdef CO_HTTP
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "Internal.h"

// Writes a sentence with the oldest error of the queue, and empties the queue.
void ctls_describe(char *error, const char *what) {
  unsigned long code = ERR_get_error();
  char buffer[128];
  const char *reason = code == 0 ? NULL : ERR_reason_error_string(code);
  // OpenSSL has no sentence for an error of the system, such as that of a file that is not there.
  if (code != 0 && ERR_SYSTEM_ERROR(code)) reason = strerror_r(ERR_GET_REASON(code), buffer, sizeof buffer);
  snprintf(error, CTLS_ERROR_SIZE, "%s: %s", what, reason == NULL ? "unknown error of OpenSSL" : reason);
  ERR_clear_error();
}

// Without this, OpenSSL asks at the terminal, and blocks the thread until somebody answers.
static int on_pass_phrase(char *phrase, int size, int is_written, void *was_asked) {
  (void)phrase;
  (void)size;
  (void)is_written;
  *(int *)was_asked = 1;
  return -1;
}

static int use_certificate(SSL_CTX *ssl, const char *chain, const char *key, char *error) {
  char what[CTLS_ERROR_SIZE - 64];
  int was_asked = 0;
  SSL_CTX_set_default_passwd_cb(ssl, on_pass_phrase);
  SSL_CTX_set_default_passwd_cb_userdata(ssl, &was_asked);
  int has_chain = SSL_CTX_use_certificate_chain_file(ssl, chain) == 1;
  int has_key = has_chain && SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) == 1;
  SSL_CTX_set_default_passwd_cb(ssl, NULL);
  SSL_CTX_set_default_passwd_cb_userdata(ssl, NULL);
  if (!has_key && was_asked) {
    snprintf(error, CTLS_ERROR_SIZE, "%s has a pass phrase; give a file without, which openssl pkey writes",
             has_chain ? key : chain);
    ERR_clear_error();
    return 0;
  }
  if (!has_chain) {
    snprintf(what, sizeof what, "the certificate chain in %s cannot be used; it must be PEM", chain);
  } else if (!has_key) {
    snprintf(what, sizeof what, "the private key in %s cannot be used; it must be PEM, and of the certificate", key);
  } else if (SSL_CTX_check_private_key(ssl) != 1) {
    snprintf(what, sizeof what, "the private key in %s is not that of the certificate", key);
  } else {
    return 1;
  }
  ctls_describe(error, what);
  return 0;
}

int ctls_has_expired(SSL_SESSION *session) {
  X509 *peer = SSL_SESSION_get0_peer(session);
  return peer != NULL && X509_cmp_current_time(X509_get0_notAfter(peer)) < 0;
}

// A session may live longer than the certificate of its client, which a whole handshake then refuses. As without this
// callback in all other cases.
static SSL_TICKET_RETURN on_ticket(SSL *ssl, SSL_SESSION *session, const unsigned char *name, size_t length,
                                   SSL_TICKET_STATUS status, void *argument) {
  (void)ssl;
  (void)name;
  (void)length;
  (void)argument;
  if (status != SSL_TICKET_SUCCESS && status != SSL_TICKET_SUCCESS_RENEW) return SSL_TICKET_RETURN_IGNORE_RENEW;
  if (ctls_has_expired(session)) return SSL_TICKET_RETURN_IGNORE_RENEW;
  return status == SSL_TICKET_SUCCESS ? SSL_TICKET_RETURN_USE : SSL_TICKET_RETURN_USE_RENEW;
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

static size_t length_without_dot(const char *name) {
  size_t length = strlen(name);
  return length > 0 && name[length - 1] == '.' ? length - 1 : length;
}

// The final dot of a name says that it is absolute, which all of them are.
static int equals_name(const char *one, const char *other) {
  size_t length = length_without_dot(one);
  return length == length_without_dot(other) && OPENSSL_strncasecmp(one, other, length) == 0;
}

// The latest one that was added under this name; null if there is none.
static SSL_CTX *find_name(const ctls_context *context, const char *name) {
  for (size_t i = context->names_count; i-- > 0;)
    if (equals_name(context->names[i].name, name)) return context->names[i].ssl;
  return NULL;
}

static SSL_CTX *find_wildcard(const ctls_context *context, const char *name) {
  const char *dot = strchr(name, '.');
  if (dot == NULL) return NULL;
  for (size_t i = context->names_count; i-- > 0;) {
    const char *pattern = context->names[i].name;
    if (pattern[0] == '*' && equals_name(pattern + 1, dot)) return context->names[i].ssl;
  }
  return NULL;
}

static int on_server_name(SSL *ssl, int *alert, void *argument) {
  (void)alert;
  ctls_context *context = argument;
  const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
  if (name == NULL) return SSL_TLSEXT_ERR_OK;
  SSL_CTX *found = find_name(context, name);
  if (found == NULL) found = find_wildcard(context, name);
  if (found != NULL) SSL_set_SSL_CTX(ssl, found);
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

// Sessions are resumed only in the context that they were made in. A session lets a client in without its certificate,
// so its context is the rule by which clients are let in: null if all are, or a digest of the rule.
static void set_session_context(SSL_CTX *ssl, const unsigned char *rule) {
  static const unsigned char everybody[SHA256_DIGEST_LENGTH] = "coroutine";
  SSL_CTX_set_session_id_context(ssl, rule == NULL ? everybody : rule, SHA256_DIGEST_LENGTH);
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
  set_session_context(ssl, NULL);
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
  set_session_context(ssl, NULL);
  SSL_CTX_set_alpn_select_cb(ssl, on_protocols, context);
  names[context->names_count++] = (struct server_name){copy, ssl};
  return 1;
}

// Adds the certificates that were loaded: what a file had when it was read, and not what it has now.
static int add_loaded(EVP_MD_CTX *digest, SSL_CTX *ssl) {
  STACK_OF(X509_OBJECT) *objects = X509_STORE_get0_objects(SSL_CTX_get_cert_store(ssl));
  for (int i = 0; i < sk_X509_OBJECT_num(objects); i++) {
    X509_OBJECT *object = sk_X509_OBJECT_value(objects, i);
    X509 *certificate = X509_OBJECT_get0_X509(object);
    X509_CRL *list = X509_OBJECT_get0_X509_CRL(object);
    unsigned char one[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    int is_made = certificate != NULL ? X509_digest(certificate, EVP_sha256(), one, &size)
                                      : list == NULL || X509_CRL_digest(list, EVP_sha256(), one, &size);
    if (!is_made || !EVP_DigestUpdate(digest, one, size)) return 0;
  }
  return 1;
}

static int add_file(EVP_MD_CTX *digest, const char *folder, const char *name) {
  char path[4096];
  unsigned char bytes[4096];
  struct stat info;
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return 0;
  if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return 1;
  FILE *file = fopen(path, "re");
  if (file == NULL) return 1;
  // The name and the size keep the contents of one file apart from those of the next one.
  int is_added = EVP_DigestUpdate(digest, name, strlen(name) + 1) &&
                 EVP_DigestUpdate(digest, &info.st_size, sizeof info.st_size);
  for (size_t count; is_added && (count = fread(bytes, 1, sizeof bytes, file)) > 0;)
    is_added = EVP_DigestUpdate(digest, bytes, count);
  fclose(file);
  return is_added;
}

// Adds the contents of a folder, from which OpenSSL reads certificates when it needs them.
static int add_folder(EVP_MD_CTX *digest, const char *folder) {
  struct dirent **entries = NULL;
  int count = scandir(folder, &entries, NULL, alphasort);
  if (count < 0) return 1;
  int is_added = 1;
  for (int i = 0; i < count; i++) {
    is_added = is_added && add_file(digest, folder, entries[i]->d_name);
    free(entries[i]);
  }
  free(entries);
  return is_added;
}

// A digest of who is let in.
static int make_rule(SSL_CTX *ssl, const char *roots, int is_required, unsigned char *rule) {
  EVP_MD_CTX *digest = EVP_MD_CTX_new();
  int is_made = digest != NULL && EVP_DigestInit_ex(digest, EVP_sha256(), NULL) &&
                EVP_DigestUpdate(digest, &is_required, sizeof is_required) && add_loaded(digest, ssl) &&
                (roots == NULL || add_folder(digest, roots)) && EVP_DigestFinal_ex(digest, rule, NULL);
  EVP_MD_CTX_free(digest);
  return is_made;
}

int ctls_context_ask_client(ctls_context *context, const char *roots, int is_required, char *error) {
  unsigned char rule[EVP_MAX_MD_SIZE];
  ERR_clear_error();
  if (!load_roots(context->ssl, roots, error)) return 0;
  if (!make_rule(context->ssl, roots, is_required, rule)) {
    ctls_describe(error, "the trusted certificates of clients cannot be summed up");
    return 0;
  }
  // What a name has is in force instead of that of the first certificate.
  for (size_t i = 0; i <= context->names_count; i++) {
    SSL_CTX *ssl = i == 0 ? context->ssl : context->names[i - 1].ssl;
    if (i > 0) SSL_CTX_set1_cert_store(ssl, SSL_CTX_get_cert_store(context->ssl));
    if (roots != NULL) SSL_CTX_set_client_CA_list(ssl, SSL_load_client_CA_file(roots));
    // Only those of tickets are looked at before they are resumed; clients of TLS 1.2 that know none begin anew.
    SSL_CTX_set_session_ticket_cb(ssl, NULL, on_ticket, NULL);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | (is_required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
    set_session_context(ssl, rule);
  }
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
