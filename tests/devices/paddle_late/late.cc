// A device for paddle over host memory whose copies run late: when their stream, an event behind them or the device is
// waited for. A source that was dropped or used again before is really read too late.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>

#include "paddle/phi/backends/device_ext.h"

namespace {

struct Stream {
  std::deque<std::function<void()>> queue;
  size_t queued = 0, done = 0;
};
struct Event {
  Stream* stream = nullptr;
  size_t number = 0;
};

std::recursive_mutex lock;
Stream default_stream;
std::set<Stream*> streams{&default_stream};
unsigned long long late_copies = 0, plain_copies = 0, waits = 0;
using Guard = std::lock_guard<std::recursive_mutex>;

Stream* of(C_Stream stream) { return stream ? reinterpret_cast<Stream*>(stream) : &default_stream; }

void run_to(Stream* stream, size_t number) {
  while (stream->done < number) {
    auto task = std::move(stream->queue.front());
    stream->queue.pop_front();
    task();
    ++stream->done;
  }
}

void run_all() {
  for (Stream* stream : streams) run_to(stream, stream->queued);
}

C_Status put(C_Stream stream, std::function<void()> task) {
  Guard guard(lock);
  of(stream)->queue.push_back(std::move(task));
  ++of(stream)->queued;
  return C_SUCCESS;
}

C_Status late_copy(const C_Device, C_Stream stream, void* dst, const void* src, size_t size) {
  ++late_copies;
  return put(stream, [=] { std::memmove(dst, src, size); });
}

C_Status plain_copy(const C_Device, void* dst, const void* src, size_t size) {
  Guard guard(lock);
  ++plain_copies;
  run_all();  // as the vendors' do: it waits for queued work
  std::memmove(dst, src, size);
  return C_SUCCESS;
}

C_Status allocate(const C_Device, void** ptr, size_t size) {
  *ptr = std::aligned_alloc(256, (size + 511) / 256 * 256);
  return *ptr ? C_SUCCESS : C_FAILED;
}
C_Status deallocate(const C_Device, void* ptr, size_t) {
  Guard guard(lock);
  run_all();
  std::free(ptr);
  return C_SUCCESS;
}
C_Status set(const C_Device, void* ptr, unsigned char value, size_t size) {
  std::memset(ptr, value, size);
  return C_SUCCESS;
}

C_Status create_stream(const C_Device, C_Stream* stream) {
  Guard guard(lock);
  auto* made = new Stream;
  streams.insert(made);
  *stream = reinterpret_cast<C_Stream>(made);
  return C_SUCCESS;
}
C_Status destroy_stream(const C_Device, C_Stream stream) {
  Guard guard(lock);
  run_to(of(stream), of(stream)->queued);
  if (stream) streams.erase(of(stream));
  return C_SUCCESS;
}
C_Status sync_stream(const C_Device, C_Stream stream) {
  Guard guard(lock);
  ++waits;
  run_to(of(stream), of(stream)->queued);
  return C_SUCCESS;
}
C_Status query_stream(const C_Device, C_Stream stream) {
  Guard guard(lock);
  return of(stream)->done == of(stream)->queued ? C_SUCCESS : C_FAILED;
}
C_Status callback(const C_Device device, C_Stream stream, C_Callback call, void* data) {
  return put(stream, [=] {
    C_Status status;
    call(device, stream, data, &status);
  });
}
C_Status create_event(const C_Device, C_Event* event) {
  *event = reinterpret_cast<C_Event>(new Event);
  return C_SUCCESS;
}
C_Status record(const C_Device, C_Stream stream, C_Event event) {
  Guard guard(lock);
  *reinterpret_cast<Event*>(event) = {of(stream), of(stream)->queued};
  return C_SUCCESS;
}
C_Status destroy_event(const C_Device, C_Event event) {
  delete reinterpret_cast<Event*>(event);
  return C_SUCCESS;
}
C_Status query_event(const C_Device, C_Event event) {
  Guard guard(lock);
  auto* e = reinterpret_cast<Event*>(event);
  return !e->stream || e->stream->done >= e->number ? C_SUCCESS : C_FAILED;
}
C_Status sync_event(const C_Device, C_Event event) {
  Guard guard(lock);
  ++waits;
  auto* e = reinterpret_cast<Event*>(event);
  if (e->stream) run_to(e->stream, e->number);
  return C_SUCCESS;
}
C_Status wait_event(const C_Device, C_Stream stream, C_Event event) {
  auto e = *reinterpret_cast<Event*>(event);
  return put(stream, [=] {
    if (e.stream) run_to(e.stream, e.number);
  });
}
C_Status sync_device(const C_Device) {
  Guard guard(lock);
  ++waits;
  run_all();
  return C_SUCCESS;
}

C_Status nothing() { return C_SUCCESS; }
C_Status of_device(const C_Device) { return C_SUCCESS; }
C_Status get_device(const C_Device device) {
  device->id = 0;
  return C_SUCCESS;
}
C_Status count(size_t* number) {
  *number = 1;
  return C_SUCCESS;
}
C_Status list(size_t* devices) {
  devices[0] = 0;
  return C_SUCCESS;
}
C_Status memory(const C_Device, size_t* total, size_t* free) {
  *total = *free = size_t(1) << 32;
  return C_SUCCESS;
}
C_Status chunk(const C_Device, size_t* size) {
  *size = 256;
  return C_SUCCESS;
}

}  // namespace

extern "C" void late_counters(unsigned long long* out) {
  out[0] = late_copies, out[1] = plain_copies, out[2] = waits;
}

// What has been queued and has not run.
extern "C" unsigned long long late_pending() {
  Guard guard(lock);
  unsigned long long pending = 0;
  for (Stream* stream : streams) pending += stream->queued - stream->done;
  return pending;
}

// Kunlun's runtime library, as far as slotline asks it: copies on the same streams, from memory that is read late.
extern "C" int xpu_memcpy_async(void* dst, const void* src, uint64_t size, int way, void* stream) {
  if (way < 0 || way > 2) return 7;
  return late_copy(nullptr, static_cast<C_Stream>(stream), dst, src, size) == C_SUCCESS ? 0 : 1;
}
extern "C" int xpu_host_alloc(void** pointer, uint64_t size, int) {
  return size < (uint64_t(1) << 40) && allocate(nullptr, pointer, size) == C_SUCCESS ? 0 : 2;
}
extern "C" int xpu_host_free(void* pointer) {
  std::free(pointer);
  return 0;
}

void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>("late");
  params->sub_device_type = const_cast<char*>("v1");
  C_DeviceInterface* i = params->interface;
  std::memset(static_cast<void*>(i), 0, sizeof(C_DeviceInterface));
  i->size = sizeof(C_DeviceInterface);
  i->initialize = i->finalize = nothing;
  i->init_device = i->set_device = i->deinit_device = of_device;
  i->get_device = get_device;
  i->create_stream = create_stream, i->destroy_stream = destroy_stream;
  i->query_stream = query_stream, i->stream_add_callback = callback;
  i->create_event = create_event, i->record_event = record, i->destroy_event = destroy_event;
  i->query_event = query_event, i->synchronize_event = sync_event, i->stream_wait_event = wait_event;
  i->synchronize_device = sync_device, i->synchronize_stream = sync_stream;
  i->device_memory_allocate = i->host_memory_allocate = i->unified_memory_allocate = allocate;
  i->device_memory_deallocate = i->host_memory_deallocate = i->unified_memory_deallocate = deallocate;
  i->device_memory_set = set;
  i->memory_copy_h2d = i->memory_copy_d2h = i->memory_copy_d2d = plain_copy;
  i->async_memory_copy_h2d = i->async_memory_copy_d2h = i->async_memory_copy_d2d = late_copy;
  i->get_device_count = count, i->get_device_list = list;
  i->device_memory_stats = memory, i->device_min_chunk_size = chunk;
}
