// host USE LIBRARY…: loads each library, calls its plugin_use(USE), and unloads it; three times. Prints "still there".
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

static int use(const char *library, const char *name) {
  void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*plugin_use)(const char *) = (int (*)(const char *))dlsym(loaded, "plugin_use");
  if (plugin_use == NULL || plugin_use(name) != 7) return fprintf(stderr, "%s does something else\n", name), 1;
  return dlclose(loaded);
}

int main(int count, char **arguments) {
  for (int round = 0; round < 3; round++) {
    for (int i = 2; i < count; i++) {
      if (use(arguments[i], arguments[1]) != 0) return 1;
    }
    // The threads of the runtime run on, in code that must be there.
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  }
  raise(SIGURG);
  return puts("still there") < 0;
}
