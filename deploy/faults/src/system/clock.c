// A library for LD_PRELOAD: the time of day is that of the kernel plus an offset in seconds, the
// 8 bytes of the file MICROBLOG_CLOCK_FILE. Timeouts, which use other clocks, go on as before.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset(void) {
  static volatile const int64_t *mapped;
  if (!mapped) {
    const char *path = getenv("MICROBLOG_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
      return 0;
    }
    void *map = mmap(NULL, sizeof *mapped, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map == MAP_FAILED) {
      return 0;
    }
    mapped = map;
  }
  return *mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += offset();
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec precise;
  int failed = clock_gettime(CLOCK_REALTIME, &precise);
  if (!failed) {
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
  }
  return failed;
}

time_t time(time_t *now) {
  struct timespec precise;
  time_t seconds = clock_gettime(CLOCK_REALTIME, &precise) ? (time_t)-1 : precise.tv_sec;
  if (now) {
    *now = seconds;
  }
  return seconds;
}
