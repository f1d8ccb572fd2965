// A load generator for the servers of `run-net`, on loopback. It compares every byte that a server sends.
//
// Each connection has at most one exchange at a time: it sends a request, and receives the response. A request of an
// echo is a line of 64 bytes that no other exchange has, so bytes of another connection or exchange are wrong bytes.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// How the program ends. Whatever a server does wrong to the bytes (others, too many, too few) is WRONG_BYTES.
enum { WRONG_BYTES = 1, NO_MEASUREMENT = 2 };

enum kind { ECHO, HTTP };

// The longest response. Go's net/http adds a date.
enum { MESSAGE = 64, LONGEST = 1024 };

// A connection, non-blocking, and its exchange.
struct client {
  int descriptor;
  // Distinguishes it from all others of this process.
  uint32_t number;
  // The number of exchanges that it has begun.
  uint32_t exchanges;
  // When the exchange began, in ns.
  uint64_t began;
  size_t received;
  unsigned char response[LONGEST];
};

// Ends the process with a sentence and a status.
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t nanoseconds(void);

// Connects to a port of 127.0.0.1. Blocks until the system has connected.
void client_open(struct client *, uint32_t number, int port);
// Resets the connection: no port stays in TIME_WAIT.
void client_close(struct client *);
// Begins an exchange: sends the whole request, which a socket without unsent bytes always takes.
void client_send(struct client *, enum kind);
// Receives what has arrived. Returns true if that completes the response, which is then compared.
bool client_receive(struct client *, enum kind);

// Whether `count` bytes are a whole response; ends the process if they are wrong. `number` and `exchange` name it.
bool is_complete(enum kind, const unsigned char *bytes, size_t count, uint32_t number, uint32_t exchange);
// Writes the request of an exchange, and returns its length.
size_t make_request(enum kind, unsigned char *request, uint32_t number, uint32_t exchange);

// Latencies in ns, in buckets of 1/64 of their value.
struct histogram {
  uint64_t counts[64 * 64];
  uint64_t total;
};
void histogram_add(struct histogram *, uint64_t value);
// The value that a part of all values does not exceed, 0.99 for example.
uint64_t histogram_quantile(const struct histogram *, double part);

// One exchange, a request in single bytes, several requests at once, and for an echo a long stream.
void check(enum kind, int port);
// Exchanges on `connections` connections for so many seconds, and prints figures.
void run(enum kind, int port, int connections, double seconds);
// Opens so many connections, exchanges once on each, prints what one of them costs the process `server` in bytes, and
// exchanges once more.
void hold(enum kind, int port, int connections, int server);

// A stream in each direction through a server that copies.
void copy_check(int port);
// Sends as fast as it can through so many tunnels for so many seconds, and prints figures; a request is a MiB.
void copy_run(int port, int connections, double seconds);
