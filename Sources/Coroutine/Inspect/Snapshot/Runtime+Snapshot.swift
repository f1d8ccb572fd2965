internal import CCoroutine

extension CoroutineRuntime {
  /// Returns every live coroutine at about this moment, as values.
  ///
  /// Never suspends; any thread, even while all queues and workers are stuck, and in a forked child. It stops nothing,
  /// wakes nothing, and takes no lock for longer than it takes to retain 32 coroutines. The last reference to an
  /// inspected object may be released here, so that its `deinit` runs on the calling thread.
  ///
  /// With `stacks`, each parked coroutine has the return addresses of its frames, the 256 innermost ones at most; a
  /// coroutine that moves meanwhile is read again, and at last has none (``Snapshot/Coroutine/isTorn``). Code without
  /// frame pointers ends a stack early. In builds with a sanitizer there are no stacks, as ``dump(_:)`` says there.
  ///
  /// - Parameter stacks: Whether to read where each coroutine is.
  public static func snapshot(stacks: Bool = false) -> Snapshot { snapshot(stacks: stacks, of: nil) }

  /// A snapshot of the coroutines of `only`, or of all.
  static func snapshot(stacks: Bool, of only: [Scheduler]?) -> Snapshot {
    var coroutines: [Snapshot.Coroutine] = []
    let late = visit(stacks: stacks, of: only) { entry, count in
      if coroutines.isEmpty { coroutines.reserveCapacity(count) }
      coroutines.append(entry)
    }
    return Snapshot(coroutines: coroutines, lateTimers: late.map(\.by))
  }

  /// Writes what ``snapshot(stacks:)`` returns as JSON, in the form that ``Snapshot`` encodes to, in several parts of
  /// about 64 KiB.
  ///
  /// So a million coroutines need no second copy. Waits for nothing itself; any thread, as `snapshot`. Times are
  /// numbers of nanoseconds, addresses are numbers, and names are as they were given.
  ///
  /// - Parameters:
  ///   - stacks: Whether to read where each coroutine is.
  ///   - write: Receives the next part, which is valid during the call. If it throws, nothing more is written.
  public static func snapshotJSON(
    stacks: Bool = false,
    _ write: (UnsafeRawBufferPointer) throws -> Void
  ) rethrows {
    var json = SnapshotJSON()
    let late = try visit(stacks: stacks, of: nil) { entry, _ in
      json.add(entry)
      try json.flush(write)
    }
    json.end(late.map(\.by))
    try json.flush(all: true, write)
  }

  /// Returns the frames at these return addresses, in their order.
  ///
  /// Names come from the symbol table of the address's image, `.symtab` if it has not been stripped, and are demangled.
  /// An image's table is read once, at the first address in it, in some tens of milliseconds for a large one; an
  /// address that was asked for before takes less than a microsecond. For lines, pass the addresses to a tool:
  /// `llvm-symbolizer` takes the build ID. Merged functions have the name of only one of them.
  ///
  /// Never suspends; any thread. Reads files, so not for signal handlers.
  public static func frames(at addresses: [UInt]) -> [Snapshot.Frame] { Symbols.frames(at: addresses) }

  /// Reads all coroutines, a few at a time; returns the schedulers that are late.
  ///
  /// `body` gets each with the number of all.
  static func visit(
    stacks: Bool,
    of only: [Scheduler]?,
    _ body: (Snapshot.Coroutine, _ count: Int) throws -> Void
  ) rethrows -> [LateScheduler] {
    var late: [LateScheduler] = []
    let jobs = LiveJobs.list(of: only) { if let single = LateScheduler($0) { late.append(single) } }
    var reader = SnapshotReader(JobNames(jobs))
    if stacks {
      var walker = StackReader()
      for first in stride(from: 0, to: jobs.count, by: StackReader.batch) {
        let some = jobs[first..<min(first + StackReader.batch, jobs.count)]
        for entry in walker.read(some) { try body(reader.coroutine(entry), jobs.count) }
      }
    } else {
      for job in jobs {
        try body(reader.coroutine(StackReader.Entry(job: InspectedJob(job))), jobs.count)
      }
    }
    return late.sorted { $0.by > $1.by }
  }
}
