// net-load echo|http check PORT
// net-load echo|http run PORT CONNECTIONS SECONDS
// net-load echo|http hold PORT CONNECTIONS PID
// net-load copy check PORT
// net-load copy run PORT CONNECTIONS SECONDS
// net-load free-port: prints a port that no socket has, for a server that cannot choose one
//
// Status 0: every byte was right. 1: wrong bytes, or an end in the middle of a response. 2: nothing was measured,
// because the server could not be reached or the arguments are wrong.
#include "load.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

void fail(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("error: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(status);
}

uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

_Noreturn static void usage(void) {
  fail(
    NO_MEASUREMENT,
    "use net-load echo|http|copy check PORT, run PORT CONNECTIONS SECONDS or, but for copy, hold PORT CONNECTIONS PID");
}

// An argument from 1 on.
static double number(const char *argument) {
  char *end;
  double value = strtod(argument, &end);
  if (end == argument || *end || !(value > 0)) fail(NO_MEASUREMENT, "'%s' is no positive number", argument);
  return value;
}

static int free_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0) fail(NO_MEASUREMENT, "no port is free");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("%d\n", ntohs(address.sin_port));
  return 0;
}

int main(int count, char **arguments) {
  if (count == 2 && strcmp(arguments[1], "free-port") == 0) return free_port();
  if (count < 4) usage();
  bool is_copy = strcmp(arguments[1], "copy") == 0;
  if (!is_copy && strcmp(arguments[1], "echo") != 0 && strcmp(arguments[1], "http") != 0) usage();
  enum kind kind = strcmp(arguments[1], "echo") == 0 ? ECHO : HTTP;
  const char *verb = arguments[2];
  int port = (int)number(arguments[3]);
  if (is_copy && strcmp(verb, "check") == 0 && count == 4)
    copy_check(port);
  else if (is_copy && strcmp(verb, "run") == 0 && count == 6)
    copy_run(port, (int)number(arguments[4]), number(arguments[5]));
  else if (is_copy)
    usage();
  else if (strcmp(verb, "check") == 0 && count == 4)
    check(kind, port);
  else if (strcmp(verb, "run") == 0 && count == 6)
    run(kind, port, (int)number(arguments[4]), number(arguments[5]));
  else if (strcmp(verb, "hold") == 0 && count == 6)
    hold(kind, port, (int)number(arguments[4]), (int)number(arguments[5]));
  else
    usage();
  return 0;
}
