// Many connections without traffic, and what they cost the server.
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STALLED_MS = 30000 };

// VmRSS and VmPTE, the page tables, which VmRSS does not contain; in bytes.
static double memory(int process) {
  char path[64], line[256];
  snprintf(path, sizeof path, "/proc/%d/status", process);
  FILE *file = fopen(path, "r");
  if (!file) fail(NO_MEASUREMENT, "%s: %s", path, strerror(errno));
  double kilobytes = 0, value;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "VmRSS: %lf", &value) == 1 || sscanf(line, "VmPTE: %lf", &value) == 1) kilobytes += value;
  fclose(file);
  return kilobytes * 1024;
}

static void exchange(struct client *client, enum kind kind) {
  client_send(client, kind);
  do {
    struct pollfd one = {.fd = client->descriptor, .events = POLLIN};
    int count = poll(&one, 1, STALLED_MS);
    if (count < 0 && errno != EINTR) fail(NO_MEASUREMENT, "poll: %s", strerror(errno));
    if (count == 0) fail(WRONG_BYTES, "connection %u waited %d s for a byte", client->number, STALLED_MS / 1000);
  } while (!client_receive(client, kind));
}

void hold(enum kind kind, int port, int connections, int server) {
  struct client first, *clients = calloc((size_t)connections, sizeof *clients);
  if (!clients) fail(NO_MEASUREMENT, "out of memory");
  // What the first connection brings into memory is not theirs.
  client_open(&first, (uint32_t)connections, port);
  for (int i = 0; i < 100; i++) exchange(&first, kind);
  double before = memory(server);
  for (int i = 0; i < connections; i++) {
    client_open(&clients[i], (uint32_t)i, port);
    exchange(&clients[i], kind);
  }
  // Idle means for seconds: a server may give memory back after a while, as ours does two to four seconds later.
  nanosleep(&(struct timespec){.tv_sec = 5}, NULL);
  printf("bytes %.0f\n", (memory(server) - before) / connections);
  for (int i = 0; i < connections; i++) exchange(&clients[i], kind);
  for (int i = 0; i < connections; i++) client_close(&clients[i]);
  client_close(&first);
  free(clients);
}
