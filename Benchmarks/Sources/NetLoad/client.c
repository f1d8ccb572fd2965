// One connection.
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void client_open(struct client *client, uint32_t number, int port) {
  int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) fail(NO_MEASUREMENT, "no socket for connection %u: %s", number, strerror(errno));
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0)
    fail(NO_MEASUREMENT, "connection %u is refused: %s", number, strerror(errno));
  int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct linger reset = {.l_onoff = 1};
  setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  fcntl(descriptor, F_SETFL, O_NONBLOCK);
  *client = (struct client){.descriptor = descriptor, .number = number};
}

void client_close(struct client *client) { close(client->descriptor); }

void client_send(struct client *client, enum kind kind) {
  unsigned char request[LONGEST];
  client->exchanges++;
  client->received = 0;
  size_t count = make_request(kind, request, client->number, client->exchanges);
  client->began = nanoseconds();
  ssize_t sent = send(client->descriptor, request, count, MSG_NOSIGNAL);
  if (sent < 0) fail(WRONG_BYTES, "connection %u was lost before a request: %s", client->number, strerror(errno));
  if ((size_t)sent != count) fail(NO_MEASUREMENT, "connection %u took part of a request", client->number);
}

bool client_receive(struct client *client, enum kind kind) {
  ssize_t count = recv(client->descriptor, client->response + client->received, LONGEST - client->received, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count < 0) fail(WRONG_BYTES, "connection %u was lost: %s", client->number, strerror(errno));
  if (count == 0)
    fail(WRONG_BYTES, "connection %u ended after %zu bytes of a response", client->number, client->received);
  client->received += (size_t)count;
  return is_complete(kind, client->response, client->received, client->number, client->exchanges);
}
