// The bytes: requests, and the comparison of responses.
#include "load.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char request_text[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
static const char status_line[] = "HTTP/1.1 200 OK\r\n";
static const char body[] = "Hello, World!";

// Eight bytes that depend on all of the arguments (splitmix64).
static uint64_t word(uint32_t number, uint32_t exchange, size_t index) {
  uint64_t x = (((uint64_t)number << 32) | exchange) * 8 + index + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

size_t make_request(enum kind kind, unsigned char *request, uint32_t number, uint32_t exchange) {
  if (kind == HTTP) {
    memcpy(request, request_text, sizeof request_text - 1);
    return sizeof request_text - 1;
  }
  for (size_t i = 0; i < MESSAGE / 8; i++) {
    // From @ to DEL, so that only the last byte is the end of a line: a server may read lines.
    uint64_t bytes = (word(number, exchange, i) & 0x3f3f3f3f3f3f3f3fu) | 0x4040404040404040u;
    memcpy(request + 8 * i, &bytes, sizeof bytes);
  }
  request[MESSAGE - 1] = '\n';
  return MESSAGE;
}

static bool is_complete_echo(const unsigned char *bytes, size_t count, uint32_t number, uint32_t exchange) {
  unsigned char expected[MESSAGE];
  make_request(ECHO, expected, number, exchange);
  if (count > MESSAGE) fail(WRONG_BYTES, "connection %u received %zu bytes for %d", number, count, MESSAGE);
  if (memcmp(bytes, expected, count) != 0)
    fail(WRONG_BYTES, "connection %u received other bytes than it has sent, in exchange %u", number, exchange);
  return count == MESSAGE;
}

// The value of Content-Length in a head that ends at `end`.
static size_t content_length(const char *head, const char *end) {
  static const char name[] = "\r\ncontent-length:";
  for (const char *line = head; line + sizeof name < end; line++)
    if (strncasecmp(line, name, sizeof name - 1) == 0) return strtoul(line + sizeof name - 1, NULL, 10);
  fail(WRONG_BYTES, "a response has no Content-Length: %.*s", (int)(end - head), head);
}

static bool is_complete_response(const unsigned char *bytes, size_t count, uint32_t number) {
  const char *head = (const char *)bytes;
  size_t known = count < sizeof status_line - 1 ? count : sizeof status_line - 1;
  if (memcmp(bytes, status_line, known) != 0)
    fail(WRONG_BYTES, "connection %u received this for a status line: %.*s", number, (int)known, head);
  const char *end = memmem(bytes, count, "\r\n\r\n", 4);
  if (!end) {
    if (count >= LONGEST) fail(WRONG_BYTES, "connection %u received %zu bytes, and no end of a head", number, count);
    return false;
  }
  size_t length = content_length(head, end);
  if (length != sizeof body - 1) fail(WRONG_BYTES, "connection %u: Content-Length is %zu", number, length);
  size_t received = (size_t)(head + count - (end + 4));
  if (received > length) fail(WRONG_BYTES, "connection %u received %zu bytes too many", number, received - length);
  if (memcmp(end + 4, body, received) != 0)
    fail(WRONG_BYTES, "connection %u received this for a body: %.*s", number, (int)received, end + 4);
  return received == length;
}

bool is_complete(enum kind kind, const unsigned char *bytes, size_t count, uint32_t number, uint32_t exchange) {
  return kind == ECHO ? is_complete_echo(bytes, count, number, exchange) : is_complete_response(bytes, count, number);
}
