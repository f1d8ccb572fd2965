// What Swift cannot import of files and of the environment: it needs _GNU_SOURCE.
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int clinux_rename_new(const char *from, const char *to) {
  clinux_check();
  if (syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
  if (errno == EEXIST) return -EEXIST;
  // Some file systems do not know the flag, and some sandboxes refuse the call.
  struct stat status;
  if (lstat(to, &status) == 0) return -EEXIST;
  return rename(from, to) == 0 ? 0 : -errno;
}

const char *clinux_secure_setting(const char *name) { return secure_getenv(name); }
