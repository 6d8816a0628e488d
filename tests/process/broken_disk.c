/* Preloaded into a server: while the file named by BROKEN_DISK exists, flushes of files whose name ends with its text
 * fail once with EIO, and the file is removed. Everything else goes to the system. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int descriptor) {
    const char *order = getenv("BROKEN_DISK");
    char link[64], name[PATH_MAX], ending[64];
    if (order == NULL || access(order, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) return 0;
    name[length] = 0;
    int file = open(order, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t wanted = read(file, ending, sizeof ending);
    close(file);
    if (wanted <= 0 || wanted > length || memcmp(name + length - wanted, ending, wanted) != 0) return 0;
    return unlink(order) == 0; /* of several threads that come here, one fails */
}

int fsync(int descriptor) {
    if (fails(descriptor)) return errno = EIO, -1;
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

int fdatasync(int descriptor) {
    if (fails(descriptor)) return errno = EIO, -1;
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(descriptor);
}
