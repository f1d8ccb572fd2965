// The lower bound of `run-net`: a server that is one loop over epoll, in C, on one thread. epoll-peer
// echo|http|http-date [all|wrong], or epoll-peer copy (copy.c)
//
// With `all`, it is one such loop for each processor. Each has a listener of the same port (SO_REUSEPORT).
//
// A connection is registered once, edge-triggered, for both directions. Three system calls serve a request: epoll_wait,
// which many connections share, recv and send. It does what the servers that it is compared with do: bytes that a
// socket does not take are sent when it can, and meanwhile nothing more is received.
//
// With `wrong`, the hundredth echo has a wrong byte: run-net makes sure that the load notices it.
#include "copy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CAPACITY = 4096 };

static const char bare[] =
  "HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: text/plain\r\n\r\nHello, World!";
// The bytes of CoroutineHTTP's answer.
static const char dated[] = "HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 13\r\n"
                            "content-type: text/plain\r\n\r\nHello, World!";
// Written once, by main.
static const char *response = bare;
static size_t response_size = sizeof bare - 1;

struct connection {
  int descriptor;
  // The bytes of CR LF CR LF that the last bytes are.
  int matched;
  // What is still to be sent: `unsent` bytes, of `buffer` from `sent` on, or as many of repeated responses.
  size_t sent, unsent;
  unsigned char buffer[CAPACITY];
};

static bool answers_http;
// The number of echoes until the wrong one; 0: none is wrong.
static int until_wrong;

void fail(const char *what) {
  perror(what);
  exit(2);
}

static size_t requests_in(struct connection *connection, size_t count) {
  size_t ends = 0;
  for (size_t i = 0; i < count; i++) {
    unsigned char byte = connection->buffer[i];
    if (byte == (connection->matched & 1 ? '\n' : '\r')) {
      if (++connection->matched == 4) {
        ends++;
        connection->matched = 0;
      }
    } else {
      connection->matched = byte == '\r';
    }
  }
  return ends;
}

// Sends what is unsent. Returns false if the socket takes no more for now, or is broken, which recv reports.
static bool flush(struct connection *connection) {
  while (connection->unsent > 0) {
    const void *bytes = connection->buffer + connection->sent;
    size_t count = connection->unsent;
    if (answers_http) {
      size_t begun = connection->sent % response_size;
      bytes = response + begun;
      count = response_size - begun;
    }
    ssize_t sent = send(connection->descriptor, bytes, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno != EAGAIN;
    connection->sent += (size_t)sent;
    connection->unsent -= (size_t)sent;
  }
  return true;
}

// Serves until no more has arrived. Returns false if the connection has ended.
static bool serve(struct connection *connection, bool peer_has_ended) {
  while (flush(connection)) {
    ssize_t count = recv(connection->descriptor, connection->buffer, CAPACITY, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    if (count == 0) return false;
    if (until_wrong > 0 && --until_wrong == 0) connection->buffer[count - 1] ^= 1;
    connection->sent = 0;
    connection->unsent = answers_http ? requests_in(connection, (size_t)count) * response_size : (size_t)count;
    // A short read has emptied the socket. An end that has arrived as well causes no further event.
    if (count < CAPACITY && !peer_has_ended) return flush(connection), true;
  }
  return true;
}

static void accept_all(int listener, int poller) {
  int descriptor;
  while ((descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0 || errno == EINTR) {
    if (descriptor < 0) continue;
    // Only what is written to of the buffer becomes memory.
    struct connection *connection = malloc(sizeof *connection);
    if (!connection) fail("malloc");
    connection->descriptor = descriptor;
    connection->matched = 0;
    connection->sent = connection->unsent = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = connection};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, descriptor, &event) != 0) fail("epoll_ctl");
  }
}

// Listens on loopback; port 0 becomes the one that the system chooses.
static int listen_on(struct sockaddr_in *address) {
  int on = 1;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  socklen_t length = sizeof *address;
  setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); // accepted sockets inherit it
  if (bind(listener, (struct sockaddr *)address, length) != 0 || listen(listener, 1024) != 0) fail("listen");
  getsockname(listener, (struct sockaddr *)address, &length);
  return listener;
}

// One loop, with the listener that `argument` points to.
static void *run(void *argument) {
  int listener = *(int *)argument;
  int poller = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) != 0) fail("epoll_ctl");
  while (true) {
    struct epoll_event events[256];
    int ready = epoll_wait(poller, events, 256, -1);
    if (ready < 0 && errno != EINTR) fail("epoll_wait");
    for (int i = 0; i < ready; i++) {
      struct connection *connection = events[i].data.ptr;
      if (!connection) {
        accept_all(listener, poller);
        continue;
      }
      if (serve(connection, events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) continue;
      close(connection->descriptor);
      free(connection);
    }
  }
}

int main(int count, char **arguments) {
  bool is_wrong = count == 3 && strcmp(arguments[2], "wrong") == 0;
  bool is_all = count == 3 && strcmp(arguments[2], "all") == 0;
  const char *kind = count > 1 ? arguments[1] : "";
  bool is_copy = count == 2 && strcmp(kind, "copy") == 0;
  bool is_dated = strcmp(kind, "http-date") == 0;
  answers_http = is_dated || strcmp(kind, "http") == 0;
  bool is_known = is_copy || answers_http || strcmp(kind, "echo") == 0;
  if (!is_known || count != 2 + (is_wrong || is_all)) {
    fputs("error: use epoll-peer echo|http|http-date [all|wrong], or epoll-peer copy\n", stderr);
    return 2;
  }
  until_wrong = is_wrong ? 100 : 0;
  if (is_dated) {
    response = dated;
    response_size = sizeof dated - 1;
  }

  long threads = is_all ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
  int *listeners = calloc((size_t)threads, sizeof *listeners);
  if (!listeners) fail("calloc");
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (long i = 0; i < threads; i++) listeners[i] = listen_on(&address);
  printf("port %d\n", ntohs(address.sin_port));
  fflush(stdout);
  if (is_copy) {
    signal(SIGPIPE, SIG_IGN);
    run_copies(listeners[0]);
  }
  for (long i = 1; i < threads; i++) {
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, run, &listeners[i])) != 0) fail("pthread_create");
  }
  run(&listeners[0]);
}
