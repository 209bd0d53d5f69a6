/* Count the live bytes of a process's heap, exactly, from inside it.
 *
 * Loaded with LD_PRELOAD, this library stands in front of glibc's allocator and
 * adds up malloc_usable_size() of every block handed out and taken back.
 * TensorFlow's CPU allocator goes through malloc, so tensors are all counted,
 * and two runs of one program differ by about 0.01 %: resident set size, which
 * depends on what the allocator returns to the system, differs by 20 %.
 *
 * heap.py compiles it and reads it through ctypes.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

/* glibc's own entry points: finding them with dlsym would call calloc, that is, us. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_long live, peak;

/* The trace: a sample each time `live` moved by `trace_step` since the last one. */
struct sample {
    double seconds;
    double bytes;
};
static _Atomic(struct sample *) trace;
static atomic_long trace_capacity, trace_length, trace_step, traced_at;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void sample_if_moved(long now)
{
    struct sample *samples = atomic_load_explicit(&trace, memory_order_acquire);
    if (!samples)
        return;
    long last = atomic_load(&traced_at);
    long step = atomic_load(&trace_step);
    if (now - last < step && last - now < step)
        return;
    if (!atomic_compare_exchange_strong(&traced_at, &last, now))
        return; /* another thread is writing this sample */
    long index = atomic_fetch_add(&trace_length, 1);
    if (index < atomic_load(&trace_capacity))
        samples[index] = (struct sample){seconds(), (double)now};
}

static void count(long bytes)
{
    long now = atomic_fetch_add(&live, bytes) + bytes;
    long highest = atomic_load(&peak);
    while (now > highest && !atomic_compare_exchange_weak(&peak, &highest, now))
        ;
    sample_if_moved(now);
}

static void *counted(void *block)
{
    if (block)
        count((long)malloc_usable_size(block));
    return block;
}

void *malloc(size_t size) { return counted(__libc_malloc(size)); }

void *calloc(size_t n, size_t size) { return counted(__libc_calloc(n, size)); }

void *memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

void *valloc(size_t size) { return memalign(4096, size); }

int posix_memalign(void **block, size_t alignment, size_t size)
{
    void *found = memalign(alignment, size);
    if (!found)
        return ENOMEM;
    *block = found;
    return 0;
}

void *realloc(void *old, size_t size)
{
    long before = old ? (long)malloc_usable_size(old) : 0;
    void *block = __libc_realloc(old, size);
    if (block)
        count((long)malloc_usable_size(block) - before);
    else if (size == 0)
        count(-before);
    return block;
}

void free(void *block)
{
    if (block)
        count(-(long)malloc_usable_size(block));
    __libc_free(block);
}

/* What heap.py calls. */

long heap_live(void) { return atomic_load(&live); }

long heap_peak(void) { return atomic_load(&peak); }

void heap_reset_peak(void) { atomic_store(&peak, atomic_load(&live)); }

void heap_trace_start(struct sample *samples, long capacity, long step)
{
    atomic_store(&trace_capacity, capacity);
    atomic_store(&trace_step, step);
    atomic_store(&trace_length, 0);
    atomic_store(&traced_at, atomic_load(&live));
    atomic_store_explicit(&trace, samples, memory_order_release);
}

long heap_trace_stop(void)
{
    atomic_store(&trace, NULL);
    long length = atomic_load(&trace_length), capacity = atomic_load(&trace_capacity);
    return length < capacity ? length : capacity;
}
