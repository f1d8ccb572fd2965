// llhttp's own llhttp.c, where it is installed as source; elsewhere the library is linked.
#ifdef CO_HTTP
#if __has_include("/usr/share/llhttp/llhttp.c")
#pragma clang diagnostic ignored "-Weverything"
#include "llhttp.h"

#include "/usr/share/llhttp/llhttp.c"
#endif
#endif
