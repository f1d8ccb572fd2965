// zlib, from Debian's zlib1g-dev. Only the demo imports it, and only with the trait Demo, so nothing else needs it.
#ifndef CZLIB_SHIM_H
#define CZLIB_SHIM_H

#include <zlib.h>

#endif
