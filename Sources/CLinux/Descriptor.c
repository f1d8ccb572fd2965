// Descriptors of ours are never 0, 1 or 2. A program may be started with those closed, and the kernel gives the lowest
// free number: then a line that the program prints would go into a connection, and a poller would be its input.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int clinux_above_standard(int descriptor) {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  clinux_check();
  int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  // A limit of three descriptors leaves no number above; the kernel calls that an invalid argument.
  int kept = errno == EINVAL ? EMFILE : errno;
  close(descriptor);
  errno = kept;
  return moved;
}

int clinux_pair_above_standard(int ends[2]) {
  for (int i = 0; i < 2; i++) {
    ends[i] = clinux_above_standard(ends[i]);
    if (ends[i] >= 0) continue;
    int code = errno;
    close(ends[1 - i]);
    return -code;
  }
  return 0;
}
