// The lower bound of a copy: one loop over epoll, and splice through a pipe for each direction.
//
// A client sends the number of a port of loopback, two bytes, in network order. From then on, its connection and a new
// one to that port are one stream in each direction. Both are edge-triggered.
#include "copy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

// The same sizes as those of co_copy.
enum { LARGE = 262144 };

struct direction {
  int source, target;
  int pipe[2];
  size_t in_pipe;
  bool is_over;
};

struct tunnel {
  struct direction there, back;
};

// Moves bytes until one of the sockets would block.
static void pump(struct direction *direction) {
  while (!direction->is_over) {
    if (direction->in_pipe > 0) {
      ssize_t sent = splice(
        direction->pipe[0], NULL, direction->target, NULL, direction->in_pipe, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
      if (sent < 0 && errno == EAGAIN) return;
      if (sent <= 0) {
        direction->is_over = true;
        shutdown(direction->source, SHUT_RD);
        return;
      }
      direction->in_pipe -= (size_t)sent;
      continue;
    }
    ssize_t got =
      splice(direction->source, NULL, direction->pipe[1], NULL, LARGE, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      direction->is_over = true;
      shutdown(direction->target, SHUT_WR);
      return;
    }
    direction->in_pipe = (size_t)got;
  }
}

static void open_direction(struct direction *direction, int source, int target) {
  *direction = (struct direction){.source = source, .target = target};
  if (pipe2(direction->pipe, O_NONBLOCK | O_CLOEXEC) != 0) fail("pipe");
  fcntl(direction->pipe[1], F_SETPIPE_SZ, LARGE);
}

// The port is read, and the connection made, while nothing else is served: the load opens its tunnels first.
static void open_tunnel(int poller, int client) {
  uint16_t port;
  int on = 1;
  if (recv(client, &port, sizeof port, MSG_WAITALL) != sizeof port) {
    close(client);
    return;
  }
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address) != 0) fail("connect");
  setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct tunnel *tunnel = malloc(sizeof *tunnel);
  if (!tunnel) fail("malloc");
  open_direction(&tunnel->there, client, server);
  open_direction(&tunnel->back, server, client);
  int both[] = {client, server};
  for (int i = 0; i < 2; i++) {
    fcntl(both[i], F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = tunnel};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, both[i], &event) != 0) fail("epoll_ctl");
  }
}

static void close_tunnel(struct tunnel *tunnel) {
  struct direction *both[] = {&tunnel->there, &tunnel->back};
  for (int i = 0; i < 2; i++) {
    close(both[i]->source);
    close(both[i]->pipe[0]);
    close(both[i]->pipe[1]);
  }
  free(tunnel);
}

void run_copies(int listener) {
  int poller = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) != 0) fail("epoll_ctl");
  while (true) {
    // One event at a time: a tunnel may be closed, and its second event must not be among those that were taken.
    int ready = epoll_wait(poller, &event, 1, -1);
    if (ready < 0 && errno != EINTR) fail("epoll_wait");
    if (ready <= 0) continue;
    struct tunnel *tunnel = event.data.ptr;
    if (!tunnel) {
      int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
      if (client >= 0) open_tunnel(poller, client);
      continue;
    }
    pump(&tunnel->there);
    pump(&tunnel->back);
    if (tunnel->there.is_over && tunnel->back.is_over) close_tunnel(tunnel);
  }
}
