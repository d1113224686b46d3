/* syncshim: an LD_PRELOAD library that makes fsync and fdatasync slow, or makes them fail, and writes down every call.
 *
 *   SYNCSHIM_CONTROL=FILE  read again at each call; lines "key value", later lines win:
 *       delay_ms N         sleep this long before the real call
 *       fail_from N        calls from the N-th of this process on (the first is 1) return EIO and sync nothing; 0 = never
 *       fail_path TEXT     only those of files that have this in their path
 *   SYNCSHIM_LOG=FILE      one line a call: number, name, begin and end in CLOCK_MONOTONIC ns, result, path
 *
 * A failing call does not reach the disk: that is the case in which the kernel has dropped the pages.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*sync_call)(int);

static long calls;

struct control {
    long delay_ms;
    long fail_from;
    char fail_path[256];
};

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct control read_control(void) {
    struct control c = {0, 0, ""};
    const char *path = getenv("SYNCSHIM_CONTROL");
    if (!path) return c;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return c;
    char text[1024];
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return c;
    text[n] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        sscanf(line, "delay_ms %ld", &c.delay_ms);
        sscanf(line, "fail_from %ld", &c.fail_from);
        sscanf(line, "fail_path %255s", c.fail_path);
    }
    return c;
}

static void path_of(int fd, char *file, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, file, size - 1);
    file[n > 0 ? n : 0] = 0;
}

static int is_meant(const struct control *c, long number, int fd) {
    char file[512];
    if (c->fail_from <= 0 || number < c->fail_from) return 0;
    path_of(fd, file, sizeof file);
    return strstr(file, c->fail_path) != NULL;
}

static void note(long number, const char *name, long long begin, int result, int fd) {
    const char *path = getenv("SYNCSHIM_LOG");
    if (!path) return;
    char file[512], line[768];
    path_of(fd, file, sizeof file);
    int length = snprintf(line, sizeof line, "%ld %s %lld %lld %d %s\n", number, name, begin, now_ns(), result, file);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) return;
    if (write(log, line, (size_t)length) != length) { /* the test that reads it will notice */ }
    close(log);
}

static int slow_or_failing(const char *name, int fd) {
    sync_call real = (sync_call)dlsym(RTLD_NEXT, name);
    struct control c = read_control();
    long number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    long long begin = now_ns();
    int result, error = 0;
    if (c.delay_ms > 0) {
        struct timespec t = {c.delay_ms / 1000, (c.delay_ms % 1000) * 1000000L};
        while (nanosleep(&t, &t) != 0 && errno == EINTR) { }
    }
    if (is_meant(&c, number, fd)) {
        result = -1;
        error = EIO;
    } else {
        result = real(fd);
        error = errno;
    }
    note(number, name, begin, result, fd);
    errno = error;
    return result;
}

int fdatasync(int fd) { return slow_or_failing("fdatasync", fd); }
int fsync(int fd) { return slow_or_failing("fsync", fd); }
