// NVML with one card, at the place on the bus that the driver names, of which others hold HELD bytes.
typedef struct { unsigned version; unsigned long total, reserved, free, used; } Memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, ids[2]; char text[32]; } Bus;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** card) { *card = (void*)1; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void* card, Memory* memory) { memory->free = (1ul << 34) - HELD; return 0; }
int nvmlDeviceGetPciInfo_v3(void* card, Bus* bus) { bus->domain = bus->bus = bus->device = 1000; return 0; }
