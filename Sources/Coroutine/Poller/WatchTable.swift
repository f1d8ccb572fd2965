import Glibc
import Synchronization

/// The readiness of every watched descriptor, in memory that is never freed.
///
/// A record consists of two `Readiness`, for reading and for writing, and is identified by its index. The index and the
/// generation identify one use of a record, and are the key of its events. Records are reused and never freed, because
/// the poller may hold an event of a descriptor that was closed since. It then reads live memory, and finds another
/// generation (Readiness.swift).
///
///   FREE(generation g) --take--> USED(g + 1) --give--> FREE(g + 1)
///
/// Invariants. `free` has the indices of the FREE records, under the lock. A chunk is published, by a releasing store,
/// before the first of its indices is in `free`, and stays.
enum WatchTable {
  /// One use of a record.
  struct Use {
    let index: UInt32
    let generation: UInt32
    /// The direction of reading; the direction of writing follows it in memory.
    let record: ReadinessRef

    var key: UInt64 { UInt64(generation) << 32 | UInt64(index) }
  }

  /// An index that no record has.
  static var noIndex: UInt32 { .max }
  private static var recordsInChunk: Int { 1_024 }
  /// The largest number of chunks, for four million descriptors.
  ///
  /// The kernel's usual limit for a process is one million (fs.nr_open).
  private static var most: Int { 4_096 }

  private static let lock = ThreadLock()
  // Sound because they are accessed under `lock`.
  nonisolated(unsafe) private static var free: [UInt32] = []
  nonisolated(unsafe) private static var chunkCount = 0
  // Sound because the pointer never changes, and its memory is atomic.
  nonisolated(unsafe) private static let chunks: UnsafeMutablePointer<Atomic<UInt>> = {
    let chunks = UnsafeMutablePointer<Atomic<UInt>>.allocate(capacity: most)
    for index in 0..<most { (chunks + index).initialize(to: Atomic(0)) }
    return chunks
  }()

  /// Takes a free record and begins a generation; returns nil if the table is full.
  static func take() -> Use? {
    let taken = lock.withLock {
      if free.isEmpty, chunkCount < most { grow() }
      return free.popLast()
    }
    guard let index = taken else { return nil }
    let record = record(index).unsafelyUnwrapped
    let generation = record.word.generation &+ 1
    record.open(generation)
    (record + 1).open(generation)
    return Use(index: index, generation: generation, record: record)
  }

  /// Returns a record to the free ones.
  ///
  /// Both directions are CLOSED, with one exception: a forked child closed the descriptor before its first use of the
  /// runtime, and returns the record after that. Then they are READY, as `open` has left them. The descriptor is one of
  /// this child, or of a parent that had not used the runtime, so no coroutine has waited in the record, and no poller
  /// has its key.
  static func give(_ use: Use) { lock.withLock { free.append(use.index) } }

  /// The number of records that are in use; any thread.
  static var inUse: Int { lock.withLock { chunkCount * recordsInChunk - free.count } }

  /// The record of an event's key; nil if there is none.
  static func record(_ index: UInt32) -> ReadinessRef? {
    let chunk = Int(index) / recordsInChunk
    guard chunk < most, let first = ReadinessRef(bitPattern: chunks[chunk].load(ordering: .acquiring)) else {
      return nil
    }
    return first + 2 * (Int(index) % recordsInChunk)
  }

  /// Adds a chunk; called under the lock.
  private static func grow() {
    let chunk = ReadinessRef.allocate(capacity: 2 * recordsInChunk)
    for index in 0..<2 * recordsInChunk {
      (chunk + index).initialize(to: Readiness())
      chunk[index].queue = withUnsafeMutablePointer(to: &chunk[index].waiters) { $0 }
    }
    chunks[chunkCount].store(UInt(bitPattern: chunk), ordering: .releasing)
    let first = UInt32(chunkCount * recordsInChunk)
    free.append(contentsOf: (first..<first + UInt32(recordsInChunk)).reversed())
    chunkCount += 1
  }
}
