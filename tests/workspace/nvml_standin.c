/* NVML on simulated GPUs (gpuspawner/backends/local/records.py): what nvidia-ml-py loads as libnvidia-ml.so.1.

   It keeps the GPU's file open, as NVML does the device's, and takes a sample each sixth of a second: the average of
   what holds the GPU, 100 of them, in a buffer that wraps around. A file named "nvml" in the folder holds an error code
   that every call then returns, one named "encoder" the utilization of every GPU's encoder. Where a file named
   "no-samples" is there, the driver keeps no buffer. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, SAMPLES = 100, MOST_GPUS = 16, ENC = 3, DEC = 4 };
#define PERIOD (1.0 / 6)

typedef struct { char uuid[96]; int file; } Gpu;
typedef struct { unsigned long long stamp; union { double d; unsigned int ui; unsigned long long ull; } value; } Sample;

static Gpu gpus[MOST_GPUS];
static unsigned int count;

static double now_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static const char *folder(void) { return getenv("GPUSPAWNER_SIMULATED_DIR"); }

/* The number in a file of the folder, or -1 where there is none. */
static int number_in(const char *name) {
    char path[4096];
    int number = -1;
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%d", &number) != 1) number = 0;
        fclose(file);
    }
    return number;
}

static int fault(void) {
    int code = number_in("nvml");
    return code < 0 ? SUCCESS : code;
}

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (!folder() || !getenv("GPUSPAWNER_GPUS")) return NOT_FOUND;
    if (fault()) return fault();
    char names[4096], *rest = names, *name, path[4096];
    snprintf(names, sizeof names, "%s", getenv("GPUSPAWNER_GPUS"));
    count = 0;
    while ((name = strsep(&rest, ",")) && *name && count < MOST_GPUS) {
        Gpu *gpu = &gpus[count++];
        snprintf(gpu->uuid, sizeof gpu->uuid, "%s", name);
        snprintf(path, sizeof path, "%s/%s", folder(), name);
        gpu->file = open(path, O_RDONLY | O_CLOEXEC);
    }
    return SUCCESS;
}

int nvmlShutdown(void) {
    for (unsigned int i = 0; i < count; i++) close(gpus[i].file);
    count = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }

int nvmlDeviceGetCount_v2(unsigned int *found) {
    *found = count;
    return fault();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Gpu **device) {
    if (index >= count) return NOT_FOUND;
    *device = &gpus[index];
    return fault();
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **device) {
    for (unsigned int i = 0; i < count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) {
            *device = &gpus[i];
            return fault();
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Gpu *device, char *uuid, unsigned int length) {
    snprintf(uuid, length, "%s", device->uuid);
    return fault();
}

/* Add what the records of one folder say of a GPU to the averages of the samples that end at `ends`. */
static void add(const char *name, int must_be_locked, Gpu *device, const double *ends, double *percents) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    DIR *listed = opendir(path);
    struct dirent *entry;
    while (listed && (entry = readdir(listed))) {
        char *dot = strchr(entry->d_name, '.');
        if (!dot || strcmp(dot + 1, device->uuid)) continue;
        snprintf(path, sizeof path, "%s/%s/%s", folder(), name, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        double percent = 0, since = 0, until = 1e18;
        char line[256];
        while (fgets(line, sizeof line, file)) {
            sscanf(line, "percent=%lf", &percent);
            sscanf(line, "since=%lf", &since);
            sscanf(line, "until=%lf", &until);
        }
        int is_dead = must_be_locked && !flock(fileno(file), LOCK_SH | LOCK_NB);
        fclose(file);
        for (int i = 0; !is_dead && i < SAMPLES; i++) {
            double begin = since > ends[i] - PERIOD ? since : ends[i] - PERIOD, end = until < ends[i] ? until : ends[i];
            if (end > begin) percents[i] += percent * (end - begin) / PERIOD;
        }
    }
    if (listed) closedir(listed);
}

int nvmlDeviceGetSamples(Gpu *device, int type, unsigned long long after, unsigned int *kind, unsigned int *number,
                         Sample *samples) {
    if (fault()) return fault();
    if (number_in("no-samples") >= 0 || type == DEC || (type == ENC && number_in("encoder") < 0)) return NOT_SUPPORTED;
    *kind = 1;
    if (!samples) {
        *number = SAMPLES;
        return SUCCESS;
    }
    double now = now_of(CLOCK_MONOTONIC), wall = now_of(CLOCK_REALTIME), ends[SAMPLES], percents[SAMPLES] = {0};
    long long newest = (long long)(now / PERIOD);
    for (int i = 0; i < SAMPLES; i++) ends[i] = (newest - SAMPLES + 1 + i) * PERIOD;
    if (type == ENC) {
        for (int i = 0; i < SAMPLES; i++) percents[i] = number_in("encoder");
    } else {
        add("ended", 0, device, ends, percents);
        add("holders", 1, device, ends, percents);
    }
    unsigned int taken = 0;
    for (int i = 0; i < SAMPLES && taken < *number; i++) {
        Sample sample = {.stamp = (unsigned long long)((wall - now + ends[i]) * 1e6)};
        sample.value.ui = percents[i] > 100 ? 100 : (unsigned int)(percents[i] + 0.5);
        if (sample.stamp > after) samples[taken++] = sample;
    }
    *number = taken;
    return taken ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetTotalEnergyConsumption(Gpu *device, unsigned long long *millijoules) {
    (void)device;
    *millijoules = (unsigned long long)(now_of(CLOCK_MONOTONIC) * 60 * 1000); /* 60 W, idle or not */
    return fault();
}

int nvmlDeviceGetUtilizationRates(Gpu *device, unsigned int *gpu_and_memory) {
    (void)device;
    gpu_and_memory[0] = gpu_and_memory[1] = 0;
    return fault();
}

int nvmlDeviceGetEncoderUtilization(Gpu *device, unsigned int *percent, unsigned int *microseconds) {
    (void)device;
    int told = number_in("encoder");
    *percent = told < 0 ? 0 : (unsigned int)told;
    *microseconds = 166666;
    return fault();
}
