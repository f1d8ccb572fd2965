internal import CCoroutine
import Glibc
import Synchronization

// The readiness of one direction of a descriptor: whether the kernel has reported an event since the last system call
// that found nothing. Such a call is called a failed try.
//
// The word is   generation << 32 | tick << 4 | flags | state
//
//                event                      failed try (`clear` with the word seen before the try)
//   IDLE ----------------------> READY ------------------------------------------------------------> IDLE
//    |                             ^
//    | a waiter joins, under the   | event: takes the lock, unlinks and claims every waiter
//    | lock                        |
//    +----------> WAITING ---------+
//    ^               | the last waiter withdraws, under the lock
//    +---------------+
//   any state --close: under the lock, every waiter is unlinked and woken--> CLOSED, for the rest of the generation
//
// READY means that a try may succeed. It is the first state, because nothing is known about a new descriptor.
//
// Invariants
//  1. WAITING whenever a waiter is linked and the lock is free. The word changes from and to WAITING, and to CLOSED,
//     only under `lock`; between IDLE and READY by compare-and-swap without it. (A select that commits another case may
//     leave WAITING without a waiter, until it disposes of its cases. The next event then wakes no waiter.)
//  2. An event changes the word in every state but CLOSED: the state becomes READY, and the tick increases.
//  3. A word becomes IDLE only by `clear(word)`. Its caller has read `word` as READY, then tried, and got EAGAIN or a
//     short read. The compare-and-swap fails if any event was recorded since `word` was read.
//
// Why no readiness is lost. Let bytes arrive (or room, or a connection), and let E be the kernel's event for them. A
// try that found nothing ended before the arrival, hence before E, and its word was read before E.
// - If E is recorded before the caller's `clear`, that fails by 2 and 3. The word stays READY, and the caller tries
//   again.
// - If E is recorded after it, E finds IDLE or WAITING, and the word becomes READY.
// Every arrival has an event, because the descriptor is watched before the first wait begins
// (WatchedDescriptor.swift), and adding a descriptor reports the readiness that it has already.
//
// Why every waiter is woken. A waiter joins under the lock, by a compare-and-swap from IDLE. If an event comes before
// that, the word is READY, and the waiter does not join. If an event comes after it, it finds WAITING and takes the
// lock, under which the waiter is linked. The waiter is claimed under the lock, or has ended for another reason
// (Waiter.swift). An event wakes all waiters. Readiness is not consumed by a waiter, so a waiter that is cancelled
// after its claim has consumed nothing.
//
// A short read. If a stream returns fewer bytes than were requested, it is empty, and the next bytes have an event. So
// `clear` may be called without a further try. That does not hold if the peer has closed its side or has sent urgent
// data, because the event of the end may have come before that read. Such an event sets STUCK, and then
// `clear(afterShortRead:)` does nothing. EAGAIN clears the word nevertheless, so STUCK cannot make a caller spin.
//
// A stale event belongs to a descriptor that was closed while the poller held the event. It carries an older
// generation, and changes nothing. The generation is part of the word, so the check and the change are one
// compare-and-swap.
//
// The tick has 28 bits. `clear` could miss an event only if exactly 2^28 events came during one system call.

/// The value of a readiness word.
struct ReadyWord: Equatable {
  enum State: UInt64 { case idle, ready, waiting, closed }

  var bits: UInt64

  init(bits: UInt64) { self.bits = bits }

  /// The word of a new descriptor.
  init(generation: UInt32) { bits = UInt64(generation) << 32 | State.ready.rawValue }

  private static var stuck: UInt64 { 4 }
  private static var tick: UInt64 { 16 }
  private static var upper: UInt64 { 0xFFFF_FFFF_0000_0000 }

  var state: State { State(rawValue: bits & 3).unsafelyUnwrapped }
  var generation: UInt32 { UInt32(truncatingIfNeeded: bits >> 32) }
  /// Whether a short read does not mean that the stream is empty.
  var isStuck: Bool { bits & Self.stuck != 0 }

  func with(_ state: State) -> ReadyWord { ReadyWord(bits: bits & ~3 | state.rawValue) }

  /// The word after an event.
  func afterEvent(sticks: Bool) -> ReadyWord {
    let lower = ((bits & ~Self.upper) &+ Self.tick) & ~Self.upper
    return ReadyWord(bits: bits & Self.upper | lower | (sticks ? Self.stuck : 0)).with(.ready)
  }
}

/// One direction of a descriptor: its word and its waiters.
///
/// In memory that is never freed (WatchTable), so that a stale event may read it.
struct Readiness: ~Copyable {
  /// Unused, because ThreadSanitizer records an inout access to any field at the address of the struct.
  let unused: UInt = 0
  let word: Atomic<UInt64>
  let lock = SpinLock()
  /// Accessed under the lock.
  var waiters = WaitQueue()
  /// The address of `waiters`, for selects.
  ///
  /// Taking the address is an access to `waiters`, which needs the lock; reading this field does not need it.
  var queue: UnsafeMutablePointer<WaitQueue>?

  init() { word = Atomic(ReadyWord(generation: 0).with(.closed).bits) }
}

/// Accessed through its address only, one field at a time.
typealias ReadinessRef = UnsafeMutablePointer<Readiness>

extension UnsafeMutablePointer where Pointee == Readiness {
  var word: ReadyWord { ReadyWord(bits: pointee.word.load(ordering: .acquiring)) }

  private func change(_ old: ReadyWord, to new: ReadyWord) -> Bool {
    pointee.word.compareExchange(
      expected: old.bits,
      desired: new.bits,
      successOrdering: .acquiringAndReleasing,
      failureOrdering: .acquiring
    ).exchanged
  }

  /// Begins a generation; no other thread uses this direction, except for stale events.
  func open(_ generation: UInt32) {
    pointee.word.store(ReadyWord(generation: generation).bits, ordering: .releasing)
  }

  /// Makes the word IDLE after a failed try, unless an event was recorded since `seen` was read, before the try.
  func clear(_ seen: ReadyWord, afterShortRead: Bool = false) {
    if seen.state == .ready, !(afterShortRead && seen.isStuck) { _ = change(seen, to: seen.with(.idle)) }
  }

  /// Records an event, and wakes all waiters.
  func happened(_ generation: UInt32, sticks: Bool) {
    var woken = JobQueue()
    happened(generation, sticks: sticks, &woken)
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }

  /// Records an event, and claims all waiters; the caller makes the jobs ready that are then in `woken`.
  func happened(_ generation: UInt32, sticks: Bool, _ woken: inout JobQueue) {
    while true {
      let old = word
      if old.generation != generation || old.state == .closed { return }
      if old.state == .waiting { return claimAll(generation, sticks: sticks, &woken) }
      if change(old, to: old.afterEvent(sticks: sticks)) { return }
    }
  }

  private func claimAll(_ generation: UInt32, sticks: Bool, _ woken: inout JobQueue) {
    pointee.lock.lock()
    var old = word
    // A close or a withdrawal may have changed the state before the lock was taken.
    while old.generation == generation, old.state != .closed, !change(old, to: old.afterEvent(sticks: sticks)) {
      old = word
    }
    if old.generation == generation { pointee.waiters.claimAll(into: &woken) }
    pointee.lock.unlock()
  }

  /// Ends the generation for this direction, and wakes all waiters.
  func close() {
    var woken = JobQueue()
    pointee.lock.lock()
    var old = word
    while !change(old, to: old.with(.closed)) { old = word }
    pointee.waiters.claimAll(into: &woken)
    pointee.lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }

  /// Makes the word WAITING, and returns true; the caller then links its waiter.
  ///
  /// Returns false if no wait may begin.
  ///
  /// Called under the lock.
  func beginWaiting() -> Bool {
    while true {
      let old = word
      switch old.state {
      case .ready, .closed: return false
      case .waiting: return true
      case .idle: if change(old, to: old.with(.waiting)) { return true }
      }
    }
  }

  /// Unlinks the waiter of a wait that ended for another reason.
  func withdraw(_ waiter: UnsafeMutablePointer<Waiter>) {
    pointee.lock.lock()
    if waiter.pointee.isLinked {
      pointee.waiters.remove(waiter)
      endWaitingIfAlone()
    }
    pointee.lock.unlock()
  }

  /// Makes the word IDLE if no waiter is left (invariant 1).
  ///
  /// Called under the lock, after a waiter was unlinked.
  func endWaitingIfAlone() {
    while pointee.waiters.first == nil {
      let old = word
      if old.state != .waiting || change(old, to: old.with(.idle)) { return }
    }
  }
}

// MARK: - The table of records

/// The readiness of every watched descriptor, in memory that is never freed.
///
/// A record consists of two `Readiness`, for reading and for writing, and is identified by its index. The index and the
/// generation identify one use of a record, and are the key of its events. Records are reused and never freed, because
/// the poller may hold an event of a descriptor that was closed since. It then reads live memory, and finds another
/// generation.
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

  /// The descriptor of a record, and who has opened it, for reports.
  struct Opened {
    let number: Int32
    /// The number of the coroutine; 0 if none has.
    let coroutine: UInt64
    let launchSite: LaunchSite?
    let time: UInt64

    /// A descriptor that the caller opens now.
    init(_ number: Int32) {
      let label = Carrier.current?.pointee.job?.label.pointee
      (self.number, coroutine, launchSite, time) = (number, label?.id ?? 0, label?.launchSite, Clock.now)
    }
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
  nonisolated(unsafe) private static var opened: [Opened?] = []
  // Sound because the pointer never changes, and its memory is atomic.
  nonisolated(unsafe) private static let chunks: UnsafeMutablePointer<Atomic<UInt>> = {
    let chunks = UnsafeMutablePointer<Atomic<UInt>>.allocate(capacity: most)
    for index in 0..<most { (chunks + index).initialize(to: Atomic(0)) }
    return chunks
  }()

  /// Takes a free record and begins a generation; returns nil if the table is full.
  static func take(for descriptor: Opened? = nil) -> Use? {
    let taken = lock.withLock {
      if free.isEmpty, chunkCount < most { grow() }
      let index = free.popLast()
      if let index { opened[Int(index)] = descriptor }
      return index
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
  static func give(_ use: Use) {
    lock.withLock {
      free.append(use.index)
      opened[Int(use.index)] = nil
    }
  }

  /// The descriptors that are open, in no order; any thread.
  static var open: [Opened] {
    let used = lock.withLock { opened.indices.compactMap { index in opened[index].map { (index, $0) } } }
    return used.filter { record(UInt32($0.0))?.word.state != .closed }.map(\.1)
  }

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
    opened += repeatElement(nil, count: recordsInChunk)
    free.append(contentsOf: (first..<first + UInt32(recordsInChunk)).reversed())
    chunkCount += 1
  }
}
