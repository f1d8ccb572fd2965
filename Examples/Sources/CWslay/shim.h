// The frames of WebSocket (Debian: libwslay-dev), and the hash of its handshake.
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <wslay/wslay.h>
