// What a server must do right before its speed means anything.
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { STALLED_MS = 30000, PIPELINED = 16, STREAM = 16 << 20, FULL_MS = 100 };

// Waits until the connection can be read, or also written.
static void wait_for(const struct client *client, short events) {
  struct pollfd one = {.fd = client->descriptor, .events = events};
  int count;
  do count = poll(&one, 1, STALLED_MS);
  while (count < 0 && errno == EINTR);
  if (count == 0) fail(WRONG_BYTES, "the server did nothing for %d s", STALLED_MS / 1000);
}

static void send_all(const struct client *client, const unsigned char *bytes, size_t count) {
  while (count > 0) {
    ssize_t sent = send(client->descriptor, bytes, count, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) fail(WRONG_BYTES, "the connection was lost: %s", strerror(errno));
    if (sent < 0) {
      wait_for(client, POLLOUT);
      continue;
    }
    bytes += sent;
    count -= (size_t)sent;
  }
}

static void receive_one(struct client *client, enum kind kind) {
  do wait_for(client, POLLIN);
  while (!client_receive(client, kind));
}

// A request whose bytes arrive one by one.
static void check_pieces(struct client *client, enum kind kind) {
  unsigned char request[LONGEST];
  client->exchanges++;
  client->received = 0;
  size_t count = make_request(kind, request, client->number, client->exchanges);
  for (size_t i = 0; i < count; i++) send_all(client, request + i, 1);
  receive_one(client, kind);
}

// Several requests at once, and their responses in order; one byte is received at a time, so a response ends where the
// next one begins.
static void check_pipelined(struct client *client, enum kind kind) {
  unsigned char requests[PIPELINED * LONGEST];
  size_t count = 0;
  for (uint32_t i = 1; i <= PIPELINED; i++)
    count += make_request(kind, requests + count, client->number, client->exchanges + i);
  send_all(client, requests, count);
  for (int i = 0; i < PIPELINED; i++) {
    client->exchanges++;
    client->received = 0;
    bool complete = false;
    while (!complete) {
      wait_for(client, POLLIN);
      ssize_t got = recv(client->descriptor, client->response + client->received, 1, 0);
      if (got <= 0) fail(WRONG_BYTES, "the connection ended in response %d of %d", i + 1, PIPELINED);
      complete = is_complete(kind, client->response, ++client->received, client->number, client->exchanges);
    }
  }
}

// Sends what the sockets of both sides take while nobody receives, so that the server has to wait; then the rest, while
// it receives.
static void check_stream(const struct client *client) {
  unsigned char *sent = malloc(STREAM), *received = malloc(STREAM);
  if (!sent || !received) fail(NO_MEASUREMENT, "out of memory");
  for (size_t i = 0; i < STREAM; i += MESSAGE) make_request(ECHO, sent + i, client->number, (uint32_t)(1000 + i));
  bool receives = false;
  for (size_t out = 0, in = 0; in < STREAM;) {
    struct pollfd one = {.fd = client->descriptor};
    one.events = (short)((out < STREAM ? POLLOUT : 0) | (receives ? POLLIN : 0));
    int ready = poll(&one, 1, receives ? STALLED_MS : FULL_MS);
    if (ready < 0 && errno != EINTR) fail(NO_MEASUREMENT, "poll: %s", strerror(errno));
    if (ready == 0 && receives) fail(WRONG_BYTES, "%zu of %d bytes came back", in, STREAM);
    if (ready == 0 || out == STREAM) receives = true;
    if (ready <= 0) continue;
    if (one.revents & POLLOUT) {
      ssize_t count = send(client->descriptor, sent + out, STREAM - out, MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) fail(WRONG_BYTES, "the connection was lost: %s", strerror(errno));
      if (count > 0) out += (size_t)count;
    }
    if (one.revents & ~POLLOUT) {
      ssize_t count = recv(client->descriptor, received + in, STREAM - in, 0);
      if (count == 0 || (count < 0 && errno != EAGAIN))
        fail(WRONG_BYTES, "the connection ended after %zu of %d bytes", in, STREAM);
      if (count > 0) in += (size_t)count;
    }
  }
  if (memcmp(sent, received, STREAM) != 0) fail(WRONG_BYTES, "a stream of %d bytes came back changed", STREAM);
  free(sent);
  free(received);
}

// After the client's end, the server ends the connection, and sends nothing more.
static void check_end(const struct client *client) {
  unsigned char byte;
  shutdown(client->descriptor, SHUT_WR);
  wait_for(client, POLLIN);
  if (recv(client->descriptor, &byte, 1, 0) > 0) fail(WRONG_BYTES, "the server sent a byte that nobody has asked for");
}

void check(enum kind kind, int port) {
  struct client client;
  client_open(&client, 1, port);
  client_send(&client, kind);
  receive_one(&client, kind);
  check_pieces(&client, kind);
  check_pipelined(&client, kind);
  if (kind == ECHO) check_stream(&client);
  check_end(&client);
  client_close(&client);
}
