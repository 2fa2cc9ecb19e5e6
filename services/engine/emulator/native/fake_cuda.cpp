// A libcuda.so whose GPU is the emulator. It holds to the rules of a real driver: a stream does its work late, when
// somebody waits for it; memory starts as NaN; what lies outside an allocation is refused; a capture forbids what a
// real one forbids. Tests steer it through the fovea_fake_* functions and, before it starts, the environment.
#include "emu.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace emu {
Kernel* first_kernel();
}

namespace {

enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
};

// Work of a stream or node of a graph; returns a code.
using Work = std::function<int()>;

struct Graph {
    std::vector<Work> nodes;
};

struct Stream {
    std::deque<Work> queue;
    int error = SUCCESS;
    Graph* capture = nullptr;
    bool invalidated = false;
};

struct Event {
    Stream* stream = nullptr;
    bool recorded = false, done = true;
    u64 time = 0;
};

struct Module {
    std::string image;
};

struct Function {
    const emu::Kernel* kernel;
    u32 dynamic_limit = 48 << 10;
};

// Shared by all threads, as memory is.
struct World {
    std::mutex lock;
    std::map<u64, size_t> device, pinned;
    size_t used = 0;
    std::vector<std::unique_ptr<Function>> functions;
    std::atomic<bool> initialised{false};
    std::atomic<u64> ticks{0};
};
World& world() {
    static World* world = new World;
    return *world;
}

// What a test steers and sees belongs to its thread, so tests may run side by side.
struct Mine {
    emu::Schedule schedule = emu::FORWARD;
    u64 seed = 1;
    std::string fail_call;
    int fail_at = 0, fail_code = 0;
    std::map<std::string, int> calls;
    std::string log, error;
    i64 live = 0;
    void* context = nullptr;
    std::set<Stream*> capturing, streams;
    Stream default_stream;
};
Mine& mine() {
    static thread_local Mine mine;
    return mine;
}

long setting(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}
size_t total_memory() { return (size_t)setting("FOVEA_FAKE_MEMORY_MB", 4096) << 20; }

// Counts a call and returns the code it has to fail with.
int called(const char* name) {
    Mine& m = mine();
    int count = ++m.calls[name];
    if (m.fail_call == name && count == m.fail_at) return m.fail_code;
    return SUCCESS;
}
#define CALLED()                                                                                              \
    if (int code = called(__func__)) return code;                                                             \
    if (!world().initialised) return NOT_INITIALIZED

Stream& stream_of(void* handle) { return handle ? *(Stream*)handle : mine().default_stream; }

int drain(Stream& stream) {
    while (!stream.queue.empty()) {
        Work work = std::move(stream.queue.front());
        stream.queue.pop_front();
        if (stream.error == SUCCESS) stream.error = work();
    }
    return stream.error;
}

int submit(void* handle, Work work) {
    Stream& stream = stream_of(handle);
    if (stream.capture) {
        if (stream.invalidated) return CAPTURE_INVALIDATED;
        stream.capture->nodes.push_back(std::move(work));
        return SUCCESS;
    }
    if (stream.error) return stream.error;
    stream.queue.push_back(std::move(work));
    return SUCCESS;
}

// What may not happen while this thread captures spoils the capture.
bool spoils() {
    for (Stream* stream : mine().capturing) stream->invalidated = true;
    return !mine().capturing.empty();
}

bool lies_in(const std::map<u64, size_t>& blocks, u64 at, size_t size) {
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return false;
    auto block = std::prev(after);
    return at + size <= block->first + block->second;
}
bool is_device(u64 at, size_t size) {
    std::lock_guard<std::mutex> guard(world().lock);
    return lies_in(world().device, at, size);
}
bool is_pinned(const void* at, size_t size) {
    std::lock_guard<std::mutex> guard(world().lock);
    return lies_in(world().pinned, (u64)at, size);
}

int allocate(u64* out, size_t size) {
    World& w = world();
    std::lock_guard<std::mutex> guard(w.lock);
    if (size == 0) return INVALID_VALUE;
    if (w.used + size > total_memory()) return OUT_OF_MEMORY;
    void* memory = nullptr;
    if (posix_memalign(&memory, 512, size)) return OUT_OF_MEMORY;
    memset(memory, 0xff, size);
    w.device[(u64)memory] = size;
    w.used += size;
    mine().live++;
    *out = (u64)memory;
    return SUCCESS;
}
int release(u64 at) {
    World& w = world();
    std::lock_guard<std::mutex> guard(w.lock);
    auto found = w.device.find(at);
    if (found == w.device.end()) return INVALID_VALUE;
    w.used -= found->second;
    free((void*)at);
    w.device.erase(found);
    mine().live--;
    return SUCCESS;
}

int launch(Function* function, emu::Dim grid, u32 threads, u32 shared, void* stream, void** params) {
    const emu::Kernel* kernel = function->kernel;
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) return INVALID_VALUE;
    if (threads == 0 || threads > kernel->threads || shared > function->dynamic_limit) return INVALID_VALUE;
    std::vector<u8> copy((u8*)params[0], (u8*)params[0] + kernel->params_size);
    char line[256];
    snprintf(line, sizeof line, "%s %ux%ux%u %u %u\n", kernel->name, grid.x, grid.y, grid.z, threads, shared);
    std::string text = line;
    return submit(stream, [=] {
        mine().log += text;
        // Sixteen bytes more would be another struct: params are read where the launch left them.
        emu::Run run{kernel, copy.data(), grid, threads, shared, mine().schedule, mine().seed};
        const char* error = emu::run(run);
        if (!error) return (int)SUCCESS;
        mine().error = std::string(kernel->name) + ": " + error;
        return (int)LAUNCH_FAILED;
    });
}

} // namespace

// Steering.

API void fovea_fake_schedule(int schedule, u64 seed) {
    mine().schedule = (emu::Schedule)schedule;
    mine().seed = seed;
}
API void fovea_fake_fail(const char* call, int nth, int code) {
    mine().calls.clear();
    mine().fail_call = call;
    mine().fail_at = nth;
    mine().fail_code = code;
}
API i64 fovea_fake_live() { return mine().live; }
API const char* fovea_fake_log() { return mine().log.c_str(); }
API const char* fovea_fake_error() { return mine().error.c_str(); }
API void fovea_fake_clear() {
    mine().log.clear();
    mine().error.clear();
}
// Lists kernels, a line each: name, size of parameters, threads, blocks per multiprocessor.
API const char* fovea_fake_kernels() {
    static std::string text = [] {
        std::string all;
        for (emu::Kernel* kernel = emu::first_kernel(); kernel; kernel = kernel->next)
            all += std::string(kernel->name) + " " + std::to_string(kernel->params_size) + " " +
                   std::to_string(kernel->threads) + " " + std::to_string(kernel->min_blocks) + "\n";
        return all;
    }();
    return text.c_str();
}

// Driver and devices.

API int cuInit(u32) {
    if (int code = called(__func__)) return code;
    if (int code = (int)setting("FOVEA_FAKE_INIT", 0)) return code;
    world().initialised = true;
    return setting("FOVEA_FAKE_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}
API int cuDriverGetVersion(int* version) {
    *version = (int)setting("FOVEA_FAKE_DRIVER", 13000);
    return SUCCESS;
}
API int cuDeviceGetCount(int* count) {
    CALLED();
    *count = (int)setting("FOVEA_FAKE_DEVICES", 1);
    return SUCCESS;
}
API int cuDeviceGet(int* device, int ordinal) {
    CALLED();
    if (ordinal < 0 || ordinal >= setting("FOVEA_FAKE_DEVICES", 1)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}
API int cuDeviceGetName(char* name, int size, int) {
    CALLED();
    snprintf(name, (size_t)size, "Fovea emulator");
    return SUCCESS;
}
API int cuDeviceTotalMem_v2(size_t* bytes, int) {
    CALLED();
    *bytes = total_memory();
    return SUCCESS;
}
API int cuDeviceGetAttribute(int* value, int attribute, int) {
    CALLED();
    long compute = setting("FOVEA_FAKE_COMPUTE", 90);
    switch (attribute) {
    case 1: *value = 1024; break;                                           // threads a block
    case 8: *value = 48 << 10; break;                                       // shared memory a block
    case 16: *value = (int)setting("FOVEA_FAKE_MULTIPROCESSORS", 4); break; // multiprocessors
    case 38: *value = 50 << 20; break;                                      // second-level cache
    case 75: *value = (int)(compute / 10); break;
    case 76: *value = (int)(compute % 10); break;
    case 97: *value = 227 << 10; break; // shared memory a block that asks
    case 115: *value = (int)setting("FOVEA_FAKE_POOLS", 1); break;
    default: *value = 0;
    }
    return SUCCESS;
}

// Contexts: one device, one context.

API int cuDevicePrimaryCtxRetain(void** context, int device) {
    CALLED();
    if (int code = (int)setting("FOVEA_FAKE_CONTEXT", 0)) return code;
    static char contexts[16];
    *context = &contexts[device & 15];
    return SUCCESS;
}
API int cuDevicePrimaryCtxRelease_v2(int) {
    CALLED();
    return SUCCESS;
}
API int cuCtxSetCurrent(void* context) {
    CALLED();
    mine().context = context;
    return SUCCESS;
}
API int cuCtxGetCurrent(void** context) {
    CALLED();
    *context = mine().context;
    return SUCCESS;
}
API int cuCtxSynchronize() {
    CALLED();
    if (spoils()) return CAPTURE_UNSUPPORTED;
    int code = drain(mine().default_stream);
    for (Stream* stream : mine().streams)
        if (int error = drain(*stream)) code = error;
    return code;
}
API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    CALLED();
    *total = total_memory();
    *free = *total - world().used;
    return SUCCESS;
}

// Memory.

API int cuMemAlloc_v2(u64* at, size_t size) {
    CALLED();
    if (spoils()) return CAPTURE_UNSUPPORTED;
    return allocate(at, size);
}
API int cuMemFree_v2(u64 at) {
    CALLED();
    if (spoils()) return CAPTURE_UNSUPPORTED;
    return release(at);
}
API int cuMemAllocAsync(u64* at, size_t size, void* stream) {
    CALLED();
    // A real driver would make it a node of the graph; ours are planned before.
    if (stream_of(stream).capture) return CAPTURE_UNSUPPORTED;
    return allocate(at, size);
}
API int cuMemFreeAsync(u64 at, void* stream) {
    CALLED();
    if (stream_of(stream).capture) return CAPTURE_UNSUPPORTED;
    return submit(stream, [=] { return release(at); });
}
API int cuMemHostAlloc(void** at, size_t size, u32) {
    CALLED();
    if (spoils()) return CAPTURE_UNSUPPORTED;
    if (size == 0 || posix_memalign(at, 4096, size)) return OUT_OF_MEMORY;
    memset(*at, 0xff, size);
    std::lock_guard<std::mutex> guard(world().lock);
    world().pinned[(u64)*at] = size;
    mine().live++;
    return SUCCESS;
}
API int cuMemFreeHost(void* at) {
    CALLED();
    std::lock_guard<std::mutex> guard(world().lock);
    if (!world().pinned.erase((u64)at)) return INVALID_VALUE;
    free(at);
    mine().live--;
    return SUCCESS;
}
API int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t size, void* stream) {
    CALLED();
    if (!is_device(to, size)) return INVALID_VALUE;
    if (is_pinned(from, size)) {
        return submit(stream, [=] {
            memcpy((void*)to, from, size);
            return (int)SUCCESS;
        });
    }
    // What isn't pinned is read at once; a capture would read it who knows when.
    if (stream_of(stream).capture) {
        stream_of(stream).invalidated = true;
        return CAPTURE_UNSUPPORTED;
    }
    std::vector<u8> kept((const u8*)from, (const u8*)from + size);
    return submit(stream, [=] {
        memcpy((void*)to, kept.data(), kept.size());
        return (int)SUCCESS;
    });
}
API int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t size, void* stream) {
    CALLED();
    if (!is_device(from, size)) return INVALID_VALUE;
    Work copy = [=] {
        memcpy(to, (const void*)from, size);
        return (int)SUCCESS;
    };
    if (is_pinned(to, size)) return submit(stream, copy);
    if (stream_of(stream).capture) {
        stream_of(stream).invalidated = true;
        return CAPTURE_UNSUPPORTED;
    }
    if (int code = submit(stream, copy)) return code;
    return drain(stream_of(stream));
}
API int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, void* stream) {
    CALLED();
    if (!is_device(from, size) || !is_device(to, size)) return INVALID_VALUE;
    return submit(stream, [=] {
        memmove((void*)to, (const void*)from, size);
        return (int)SUCCESS;
    });
}
API int cuMemsetD8Async(u64 at, u8 value, size_t size, void* stream) {
    CALLED();
    if (!is_device(at, size)) return INVALID_VALUE;
    return submit(stream, [=] {
        memset((void*)at, value, size);
        return (int)SUCCESS;
    });
}

// Streams and events.

API int cuStreamCreate(void** stream, u32) {
    CALLED();
    *stream = new Stream;
    mine().streams.insert((Stream*)*stream);
    mine().live++;
    return SUCCESS;
}
API int cuStreamDestroy_v2(void* stream) {
    CALLED();
    int code = drain(*(Stream*)stream);
    mine().capturing.erase((Stream*)stream);
    mine().streams.erase((Stream*)stream);
    delete (Stream*)stream;
    mine().live--;
    return code;
}
API int cuStreamSynchronize(void* stream) {
    CALLED();
    if (spoils()) return CAPTURE_UNSUPPORTED;
    return drain(stream_of(stream));
}
API int cuEventCreate(void** event, u32) {
    CALLED();
    *event = new Event;
    mine().live++;
    return SUCCESS;
}
API int cuEventDestroy_v2(void* event) {
    CALLED();
    // Work that is still queued may refer to it.
    if (((Event*)event)->stream) drain(*((Event*)event)->stream);
    delete (Event*)event;
    mine().live--;
    return SUCCESS;
}
API int cuEventRecord(void* handle, void* stream) {
    CALLED();
    Event* event = (Event*)handle;
    if (stream_of(stream).capture) {
        stream_of(stream).invalidated = true;
        return CAPTURE_UNSUPPORTED;
    }
    event->stream = &stream_of(stream);
    event->recorded = true;
    event->done = false;
    return submit(stream, [=] {
        event->done = true;
        event->time = ++world().ticks;
        return (int)SUCCESS;
    });
}
API int cuEventSynchronize(void* handle) {
    CALLED();
    Event* event = (Event*)handle;
    if (spoils()) return CAPTURE_UNSUPPORTED;
    return event->done ? (int)SUCCESS : drain(*event->stream);
}
API int cuEventQuery(void* handle) {
    CALLED();
    return ((Event*)handle)->done ? SUCCESS : 600;
}
API int cuEventElapsedTime(float* ms, void* start, void* end) {
    CALLED();
    if (!((Event*)start)->done || !((Event*)end)->done) return 600;
    *ms = (float)(((Event*)end)->time - ((Event*)start)->time);
    return SUCCESS;
}
API int cuStreamWaitEvent(void* stream, void* handle, u32) {
    CALLED();
    Event* event = (Event*)handle;
    if (stream_of(stream).capture) {
        stream_of(stream).invalidated = true;
        return CAPTURE_UNSUPPORTED;
    }
    return submit(stream, [=] { return event->done ? (int)SUCCESS : drain(*event->stream); });
}

// Modules and kernels.

API int cuModuleLoadData(void** module, const void* image) {
    CALLED();
    const char* text = (const char*)image;
    if (spoils()) return CAPTURE_UNSUPPORTED;
    if (memcmp(text, "\x7f" "ELF", 4) == 0) {
        // The section headers end the file; their place and number say how long it is.
        const u8* elf = (const u8*)image;
        u64 sections;
        u16 size, count;
        memcpy(&sections, elf + 40, 8);
        memcpy(&size, elf + 58, 2);
        memcpy(&count, elf + 60, 2);
        *module = new Module{std::string(text, sections + (u64)size * count)};
    } else if (strncmp(text, "//", 2) == 0 || strncmp(text, ".version", 8) == 0 || text[0] == '\n') {
        *module = new Module{text};
    } else {
        return INVALID_IMAGE;
    }
    mine().live++;
    return SUCCESS;
}
API int cuModuleUnload(void* module) {
    CALLED();
    delete (Module*)module;
    mine().live--;
    return SUCCESS;
}
API int cuModuleGetFunction(void** out, void* module, const char* name) {
    CALLED();
    for (emu::Kernel* kernel = emu::first_kernel(); kernel; kernel = kernel->next) {
        if (strcmp(kernel->name, name) != 0 || ((Module*)module)->image.find(name) == std::string::npos) continue;
        std::lock_guard<std::mutex> guard(world().lock);
        world().functions.emplace_back(new Function{kernel});
        *out = world().functions.back().get();
        return SUCCESS;
    }
    return NOT_FOUND;
}
API int cuFuncSetAttribute(void* function, int attribute, int value) {
    CALLED();
    if (attribute != 8) return SUCCESS;
    if (value < 0 || value > 227 << 10) return INVALID_VALUE;
    ((Function*)function)->dynamic_limit = (u32)value;
    return SUCCESS;
}
API int cuFuncGetAttribute(int* value, int attribute, void* function) {
    CALLED();
    *value = attribute == 0 ? (int)((Function*)function)->kernel->threads : 0;
    return SUCCESS;
}
API int cuLaunchKernel(void* function, u32 x, u32 y, u32 z, u32 tx, u32 ty, u32 tz, u32 shared, void* stream,
                       void** params, void**) {
    CALLED();
    if (!function || ty != 1 || tz != 1) return INVALID_VALUE;
    return launch((Function*)function, emu::Dim{x, y, z}, tx, shared, stream, params);
}

// Capture and graphs.
#ifndef FOVEA_FAKE_WITHOUT_GRAPHS

API int cuStreamBeginCapture_v2(void* handle, int) {
    CALLED();
    Stream& stream = stream_of(handle);
    if (!handle || stream.capture) return INVALID_VALUE;
    stream.capture = new Graph;
    stream.invalidated = false;
    mine().capturing.insert(&stream);
    return SUCCESS;
}
API int cuStreamEndCapture(void* handle, void** graph) {
    // A capture is over however its end went.
    int code = called(__func__);
    Stream& stream = stream_of(handle);
    if (!stream.capture) return INVALID_VALUE;
    std::unique_ptr<Graph> captured(stream.capture);
    stream.capture = nullptr;
    mine().capturing.erase(&stream);
    *graph = nullptr;
    if (code) return code;
    if (stream.invalidated) return CAPTURE_INVALIDATED;
    *graph = captured.release();
    mine().live++;
    return SUCCESS;
}
API int cuStreamIsCapturing(void* handle, int* status) {
    CALLED();
    Stream& stream = stream_of(handle);
    *status = !stream.capture ? 0 : stream.invalidated ? 2 : 1;
    return SUCCESS;
}
API int cuGraphInstantiateWithFlags(void** exec, void* graph, u64) {
    CALLED();
    *exec = new Graph(*(Graph*)graph);
    mine().live++;
    return SUCCESS;
}
API int cuGraphUpload(void*, void*) {
    CALLED();
    return SUCCESS;
}
API int cuGraphLaunch(void* exec, void* stream) {
    CALLED();
    if (stream_of(stream).capture) return CAPTURE_UNSUPPORTED;
    for (const Work& node : ((Graph*)exec)->nodes)
        if (int code = submit(stream, node)) return code;
    return SUCCESS;
}
API int cuGraphGetNodes(void* graph, void**, size_t* count) {
    CALLED();
    *count = ((Graph*)graph)->nodes.size();
    return SUCCESS;
}
API int cuGraphDestroy(void* graph) {
    CALLED();
    delete (Graph*)graph;
    mine().live--;
    return SUCCESS;
}
API int cuGraphExecDestroy(void* exec) {
    CALLED();
    delete (Graph*)exec;
    mine().live--;
    return SUCCESS;
}

#endif

// Words.

API int cuGetErrorName(int code, const char** name) {
    switch (code) {
    case SUCCESS: *name = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    case CAPTURE_INVALIDATED: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; break;
    default: *name = "CUDA_ERROR";
    }
    return SUCCESS;
}
API int cuGetErrorString(int code, const char** text) {
    *text = code == LAUNCH_FAILED ? fovea_fake_error() : "the fake driver refuses";
    return SUCCESS;
}
