// Tunnels through a server that copies: it is sent the number of a port, which is ours, and connects to it.
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STALLED_MS = 30000, CHUNK = 1 << 18, CHECKED = 16 << 20 };

// Two ends of one stream in each direction.
struct tunnel {
  int near, far;
};

static struct tunnel open_tunnel(int port, uint32_t number) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0)
    fail(NO_MEASUREMENT, "no listener: %s", strerror(errno));
  getsockname(listener, (struct sockaddr *)&address, &length);
  struct client client;
  client_open(&client, number, port);
  if (send(client.descriptor, &address.sin_port, sizeof address.sin_port, MSG_NOSIGNAL) != sizeof address.sin_port)
    fail(WRONG_BYTES, "tunnel %u was lost: %s", number, strerror(errno));
  struct pollfd one = {.fd = listener, .events = POLLIN};
  if (poll(&one, 1, STALLED_MS) != 1) fail(WRONG_BYTES, "the server did not connect for tunnel %u", number);
  int far = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (far < 0) fail(NO_MEASUREMENT, "accept: %s", strerror(errno));
  close(listener);
  return (struct tunnel){.near = client.descriptor, .far = far};
}

// Sends a long stream from one end to the other, and then its end; compares every byte.
static void check_stream(int from, int to, uint32_t number) {
  unsigned char *sent = malloc(CHECKED), *received = malloc(CHECKED + 1);
  if (!sent || !received) fail(NO_MEASUREMENT, "out of memory");
  for (size_t i = 0; i < CHECKED; i += MESSAGE) make_request(ECHO, sent + i, number, (uint32_t)i);
  bool has_ended = false;
  for (size_t out = 0, in = 0; !has_ended;) {
    struct pollfd both[] = {{.fd = to, .events = POLLIN}, {.fd = out < CHECKED ? from : -1, .events = POLLOUT}};
    int ready = poll(both, 2, STALLED_MS);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) fail(WRONG_BYTES, "%zu of %d bytes came through", in, CHECKED);
    if (both[1].revents) {
      ssize_t count = send(from, sent + out, CHECKED - out, MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) fail(WRONG_BYTES, "the connection was lost: %s", strerror(errno));
      if (count > 0) out += (size_t)count;
      if (out == CHECKED) shutdown(from, SHUT_WR);
    }
    if (both[0].revents) {
      ssize_t count = recv(to, received + in, CHECKED + 1 - in, 0);
      if (count < 0 && errno != EAGAIN) fail(WRONG_BYTES, "the connection was lost: %s", strerror(errno));
      if (count > 0) in += (size_t)count;
      has_ended = count == 0;
      if (has_ended && in != CHECKED) fail(WRONG_BYTES, "the stream ended after %zu of %d bytes", in, CHECKED);
      if (in > CHECKED) fail(WRONG_BYTES, "more bytes came than were sent");
    }
  }
  if (memcmp(sent, received, CHECKED) != 0) fail(WRONG_BYTES, "a stream of %d bytes came through changed", CHECKED);
  free(sent);
  free(received);
}

void copy_check(int port) {
  struct tunnel tunnel = open_tunnel(port, 1);
  // The first direction has ended when the second one begins.
  check_stream(tunnel.near, tunnel.far, 1);
  check_stream(tunnel.far, tunnel.near, 2);
  close(tunnel.near);
  close(tunnel.far);
}

void copy_run(int port, int connections, double seconds) {
  struct tunnel *tunnels = calloc((size_t)connections, sizeof *tunnels);
  unsigned char *bytes = calloc(1, CHUNK);
  int poller = epoll_create1(EPOLL_CLOEXEC);
  if (!tunnels || !bytes || poller < 0) fail(NO_MEASUREMENT, "out of memory or descriptors");
  for (int i = 0; i < connections; i++) {
    tunnels[i] = open_tunnel(port, (uint32_t)i);
    struct epoll_event out = {.events = EPOLLOUT, .data.u64 = (uint64_t)i * 2};
    struct epoll_event in = {.events = EPOLLIN, .data.u64 = (uint64_t)i * 2 + 1};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, tunnels[i].near, &out) != 0 ||
        epoll_ctl(poller, EPOLL_CTL_ADD, tunnels[i].far, &in) != 0)
      fail(NO_MEASUREMENT, "epoll_ctl: %s", strerror(errno));
  }
  uint64_t began = nanoseconds(), ends = began + (uint64_t)(seconds * 1e9), now = began, received = 0;
  while (now < ends) {
    struct epoll_event events[64];
    int count = epoll_wait(poller, events, 64, STALLED_MS);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(WRONG_BYTES, "no byte moved for %d s", STALLED_MS / 1000);
    for (int i = 0; i < count; i++) {
      const struct tunnel *tunnel = &tunnels[events[i].data.u64 / 2];
      // The system drops what is received, so that the load has more time than the server needs.
      bool is_input = events[i].data.u64 & 1;
      ssize_t moved = is_input ? recv(tunnel->far, NULL, CHUNK, MSG_TRUNC)
                               : send(tunnel->near, bytes, CHUNK, MSG_NOSIGNAL);
      if (moved == 0 || (moved < 0 && errno != EAGAIN)) fail(WRONG_BYTES, "a tunnel was lost: %s", strerror(errno));
      if (moved > 0 && is_input) received += (uint64_t)moved;
    }
    now = nanoseconds();
  }
  double mebibytes = (double)received / (1 << 20), elapsed = (double)(now - began) / 1e9;
  printf("requests %.3f\nrps %.3f\nwall %.3f\n", mebibytes, mebibytes / elapsed, elapsed * 1e6 / mebibytes);
  for (int i = 0; i < connections; i++) {
    close(tunnels[i].near);
    close(tunnels[i].far);
  }
  free(tunnels);
  free(bytes);
}
