"""The device-neutral heart of slotline: layouts, tasks, planning, packets, slots and the backend interface."""
