// Exchanges on many connections, one at a time on each.
#include "load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { STALLED_MS = 30000 };

void run(enum kind kind, int port, int connections, double seconds) {
  struct client *clients = calloc((size_t)connections, sizeof *clients);
  struct histogram *latencies = calloc(1, sizeof *latencies);
  int poller = epoll_create1(EPOLL_CLOEXEC);
  if (!clients || !latencies || poller < 0) fail(NO_MEASUREMENT, "out of memory or descriptors");
  for (int i = 0; i < connections; i++) {
    client_open(&clients[i], (uint32_t)i, port);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, clients[i].descriptor, &event) != 0)
      fail(NO_MEASUREMENT, "epoll_ctl: %s", strerror(errno));
  }
  uint64_t began = nanoseconds(), ends = began + (uint64_t)(seconds * 1e9), now = began;
  for (int i = 0; i < connections; i++) client_send(&clients[i], kind);
  // When the time is over, the exchanges that have begun are completed, and no others begin.
  for (int open = connections; open > 0;) {
    struct epoll_event events[256];
    int count = epoll_wait(poller, events, 256, STALLED_MS);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(NO_MEASUREMENT, "epoll_wait: %s", strerror(errno));
    if (count == 0) fail(WRONG_BYTES, "no byte came for %d s; %d exchanges are incomplete", STALLED_MS / 1000, open);
    for (int i = 0; i < count; i++) {
      struct client *client = events[i].data.ptr;
      if (!client_receive(client, kind)) continue;
      now = nanoseconds();
      histogram_add(latencies, now - client->began);
      if (now < ends)
        client_send(client, kind);
      else
        open--;
    }
  }
  printf("requests %llu\n", (unsigned long long)latencies->total);
  printf("rps %.0f\n", (double)latencies->total / ((double)(now - began) / 1e9));
  printf("p50 %.1f\n", (double)histogram_quantile(latencies, 0.5) / 1e3);
  printf("p99 %.1f\n", (double)histogram_quantile(latencies, 0.99) / 1e3);
  for (int i = 0; i < connections; i++) client_close(&clients[i]);
  free(clients);
  free(latencies);
}
