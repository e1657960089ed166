/* NVML on simulated GPUs (gpuspawner/backends/local/records.py): what nvidia-ml-py loads as libnvidia-ml.so.1.

   It keeps the GPU's file open, as NVML does the device's, and takes a sample each sixth of a second: the average of
   what holds the GPU, 100 of them, in a buffer that wraps around. A file named "nvml" in the folder holds an error code
   that every call then returns, one named "encoder" the utilization of every GPU's encoder. Where a file named
   "no-samples" is there, the driver keeps no buffer.

   GPM is there where a file named "gpm" is: it holds the code that reading a sample returns. The activity of an engine
   is the average of what held the GPU between two samples, and the number in a file named "activity", which may be
   "nan". A file named "mig" makes a GPU one in MIG mode, with a MIG device for each of its lines: its UUID, its GPU
   instance, and the slices of its compute instance and of the GPU instance. The activity of instance 3 is in a file
   named "activity-3". */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { SAMPLES = 100, MOST_GPUS = 16, MOST_MIG = 7, ENC = 3, DEC = 4, GRAPHICS_UTIL = 1, NVDEC_0_UTIL = 30 };
#define PERIOD (1.0 / 6)

typedef struct Gpu { char uuid[96]; int file; struct Gpu *of; unsigned int instance, slices, instance_slices; } Gpu;
typedef struct { double at, activity; Gpu *gpu; } GpmSample;
typedef struct { unsigned int id; int code; double value; const char *info[3]; } GpmMetric;
typedef struct { unsigned int version, count; GpmSample *begin, *end; GpmMetric metrics[]; } GpmRequest;
typedef struct { unsigned long long stamp; union { double d; unsigned int ui; unsigned long long ull; } value; } Sample;

static Gpu gpus[MOST_GPUS], mig[MOST_MIG];
static unsigned int count, mig_count;
static int open_samples;

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

/* The number in a file of the folder, or 0 where there is none. */
static double fraction_in(const char *name) {
    char path[4096];
    double number = 0;
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%lf", &number) != 1) number = 0;
        fclose(file);
    }
    return number;
}

static void read_mig(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/mig", folder());
    FILE *file = fopen(path, "r");
    mig_count = 0;
    while (file && mig_count < MOST_MIG) {
        Gpu *one = &mig[mig_count];
        one->of = &gpus[0];
        if (fscanf(file, "%95s %u %u %u", one->uuid, &one->instance, &one->slices, &one->instance_slices) != 4) break;
        mig_count++;
    }
    if (file) fclose(file);
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
    read_mig();
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
    for (unsigned int i = 0; i < mig_count; i++)
        if (!strcmp(mig[i].uuid, uuid)) {
            *device = &mig[i];
            return fault();
        }
    return NOT_FOUND;
}

int nvmlDeviceIsMigDeviceHandle(Gpu *device, unsigned int *is_mig) {
    *is_mig = device->of != NULL;
    return fault();
}

int nvmlDeviceGetMigMode(Gpu *device, unsigned int *current, unsigned int *pending) {
    *current = *pending = mig_count > 0;
    return device->of ? INVALID_ARGUMENT : fault();
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu *device, unsigned int *most) {
    (void)device;
    *most = MOST_MIG;
    return fault();
}

int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *device, unsigned int index, Gpu **found) {
    if (index >= mig_count || mig[index].of != device) return NOT_FOUND;
    *found = &mig[index];
    return fault();
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Gpu *device, Gpu **found) {
    *found = device->of;
    return device->of ? fault() : INVALID_ARGUMENT;
}

int nvmlDeviceGetGpuInstanceId(Gpu *device, unsigned int *instance) {
    *instance = device->instance;
    return device->of ? fault() : INVALID_ARGUMENT;
}

int nvmlDeviceGetAttributes_v2(Gpu *device, unsigned int *attributes) {
    memset(attributes, 0, 40);
    attributes[6] = device->instance_slices;
    attributes[7] = device->slices;
    return device->of ? fault() : INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(Gpu *device, char *uuid, unsigned int length) {
    snprintf(uuid, length, "%s", device->uuid);
    return fault();
}

/* Add what the records of one folder say of a GPU to the averages of the `number` periods that end at `ends`. */
static void add(const char *name, int must_be_locked, Gpu *device, const double *ends, double *percents, int number,
                double period) {
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
        for (int i = 0; !is_dead && i < number; i++) {
            double begin = since > ends[i] - period ? since : ends[i] - period, end = until < ends[i] ? until : ends[i];
            if (end > begin) percents[i] += percent * (end - begin) / period;
        }
    }
    if (listed) closedir(listed);
}

int nvmlDeviceGetSamples(Gpu *device, int type, unsigned long long after, unsigned int *kind, unsigned int *number,
                         Sample *samples) {
    if (fault()) return fault();
    if (device->of || mig_count) return INVALID_ARGUMENT; /* a driver's answers for MIG are no percentages either */
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
        add("ended", 0, device, ends, percents, SAMPLES, PERIOD);
        add("holders", 1, device, ends, percents, SAMPLES, PERIOD);
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

int nvmlGpmQueryDeviceSupport(Gpu *device, unsigned int *version_and_supported) {
    version_and_supported[1] = number_in("gpm") >= 0;
    return device->of ? INVALID_ARGUMENT : fault();
}

int nvmlGpmSampleAlloc(GpmSample **sample) {
    *sample = calloc(1, sizeof **sample);
    open_samples++;
    return fault();
}

int nvmlGpmSampleFree(GpmSample *sample) {
    free(sample);
    open_samples--;
    return SUCCESS;
}

/* How many samples are not freed yet. Only tests ask. */
int standinOpenSamples(void) { return open_samples; }

static int take(Gpu *gpu, const char *activity, GpmSample *sample) {
    *sample = (GpmSample){now_of(CLOCK_MONOTONIC), fraction_in(activity), gpu};
    int code = number_in("gpm");
    return fault() ? fault() : code < 0 ? NOT_SUPPORTED : code;
}

int nvmlGpmSampleGet(Gpu *device, GpmSample *sample) {
    return device->of || mig_count ? INVALID_ARGUMENT : take(device, "activity", sample);
}

int nvmlGpmMigSampleGet(Gpu *device, unsigned int instance, GpmSample *sample) {
    char activity[32];
    snprintf(activity, sizeof activity, "activity-%u", instance);
    for (unsigned int i = 0; i < mig_count; i++)
        if (mig[i].of == device && mig[i].instance == instance) return take(NULL, activity, sample);
    return INVALID_ARGUMENT;
}

int nvmlGpmMetricsGet(GpmRequest *asked) {
    double held = 0, seconds = asked->end->at - asked->begin->at, decoder = number_in("decoder");
    if (asked->version != 1 || seconds < 0.1) return INVALID_ARGUMENT;
    if (asked->end->gpu) {
        add("ended", 0, asked->end->gpu, &asked->end->at, &held, 1, seconds);
        add("holders", 1, asked->end->gpu, &asked->end->at, &held, 1, seconds);
    }
    for (unsigned int i = 0; i < asked->count; i++) {
        GpmMetric *metric = &asked->metrics[i];
        metric->code = metric->id == GRAPHICS_UTIL || (metric->id == NVDEC_0_UTIL && decoder >= 0) ? 0 : NOT_SUPPORTED;
        metric->value = metric->id == NVDEC_0_UTIL ? decoder : held + asked->end->activity;
        if (metric->code) metric->value = 100; /* to be ignored */
    }
    return fault();
}
