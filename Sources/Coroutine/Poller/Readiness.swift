import Synchronization

// Whether one direction of a descriptor may be tried: what the kernel has said since it was last tried in vain.
//
// The word is   generation << 32 | tick << 4 | flags | state
//
//                event                      try in vain (`clear` with the word seen before the try)
//   IDLE ----------------------> READY ------------------------------------------------------------> IDLE
//    |                             ^
//    | a waiter joins, under the   | event: takes the lock, unlinks and claims every waiter
//    | lock                        |
//    +----------> WAITING ---------+
//    ^               | the last waiter withdraws, under the lock
//    +---------------+
//   any state --close: under the lock, every waiter is unlinked and woken--> CLOSED, for the rest of the generation
//
// READY means: try. It is also the first state, so nothing is known of a new descriptor, and the first call tries.
//
// Invariants
//  1. WAITING whenever a waiter is linked and the lock is free. The word changes from and to WAITING, and to CLOSED,
//     only under `lock`; between IDLE and READY by compare-and-swap without it. (A select that commits another case may
//     leave WAITING without a waiter, until it disposes of its cases: the next event then wakes no one.)
//  2. An event changes the word in every state but CLOSED: to READY, and with a new tick if it was READY already.
//  3. A word becomes IDLE only by `clear(word)`, by a caller that read `word` as READY, then tried, and met EAGAIN or a
//     short read; the compare-and-swap fails if any event has come since `word` was read.
//
// Why no readiness is lost. Let bytes arrive (or room, or a connection), and let the kernel's event for them be E. A
// try that saw nothing of them ended before they arrived, so before E, and its word was read before E. If E is noted
// before its `clear`, that fails by 2 and 3, and the word stays READY: the caller tries again. If E is noted after it,
// E finds IDLE or WAITING and makes it READY. Every arrival has an event, as the descriptor is watched before the first
// wait begins (WatchedDescriptor+Wait.swift), and adding a descriptor reports what is there already.
//
// Why no waiter is left behind. It joins under the lock, by a compare-and-swap from IDLE. An event before that leaves
// READY, and the waiter does not join; an event after it finds WAITING and takes the lock, under which the waiter is
// linked. It is claimed under the lock, or has ended for another reason (Waiter.swift). Everything that wakes wakes
// all: readiness is no value that one of them takes away, so a waiter that is cancelled after its claim has taken
// nothing.
//
// A short read. A stream that gave less than was asked is empty, and the next bytes have an event: `clear` may be
// called without a further try. Not if the peer has closed its side, or has sent urgent data: the event of the end may
// have come before that read. Such an event sets STUCK, by which `clear(afterShortRead:)` does nothing. EAGAIN clears
// all the same, so STUCK cannot make a caller spin.
//
// A stale event, one of a descriptor that was closed while the poller held the event, carries an older generation and
// changes nothing. The generation is part of the word, so the check and the change are one compare-and-swap.
//
// The tick has 28 bits: to be mistaken, exactly 2^28 events would have to come during one system call.

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
  /// Whether a short read proves nothing.
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
/// In memory that is never freed (WatchTable), so that a stale event may look at it.
struct Readiness: ~Copyable {
  /// ThreadSanitizer records an inout access to any field at the address of the struct, so no field in use may be
  /// there.
  let unused: UInt = 0
  let word: Atomic<UInt64>
  let lock = SpinLock()
  /// Accessed under the lock.
  var waiters = WaitQueue()
  /// The address of `waiters`, for selects: taking the address is an access, which only the holder of the lock may
  /// make.
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

  /// Begins the life of a descriptor; no other thread uses this direction but for stale events.
  func open(_ generation: UInt32) {
    pointee.word.store(ReadyWord(generation: generation).bits, ordering: .releasing)
  }

  /// Notes that a try which began after `seen` was read has found nothing, unless an event has come since.
  func clear(_ seen: ReadyWord, afterShortRead: Bool = false) {
    if seen.state == .ready, !(afterShortRead && seen.isStuck) { _ = change(seen, to: seen.with(.idle)) }
  }

  /// Notes an event, and wakes all waiters.
  func happened(_ generation: UInt32, sticks: Bool) {
    while true {
      let old = word
      if old.generation != generation || old.state == .closed { return }
      if old.state == .waiting { return wakeAll(generation, sticks: sticks) }
      if change(old, to: old.afterEvent(sticks: sticks)) { return }
    }
  }

  private func wakeAll(_ generation: UInt32, sticks: Bool) {
    var woken = JobQueue()
    pointee.lock.lock()
    var old = word
    // A close, or a withdrawal, may have been faster.
    while old.generation == generation, old.state != .closed, !change(old, to: old.afterEvent(sticks: sticks)) {
      old = word
    }
    if old.generation == generation { claimAll(&woken) }
    pointee.lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }

  /// Ends the generation for this direction, and wakes all waiters.
  func close() {
    var woken = JobQueue()
    pointee.lock.lock()
    var old = word
    while !change(old, to: old.with(.closed)) { old = word }
    claimAll(&woken)
    pointee.lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }

  /// Called under the lock.
  private func claimAll(_ woken: inout JobQueue) {
    while let waiter = pointee.waiters.popFirst() {
      if let job = waiter.pointee.job, job.claim(waiter.pointee.epoch, waiter.pointee.reason) { woken.append(job) }
    }
  }

  /// Under the lock: whether a wait may begin, after which the word is WAITING and the caller links its waiter.
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

  /// Under the lock: repairs invariant 1 after a waiter was unlinked.
  func endWaitingIfAlone() {
    while pointee.waiters.first == nil {
      let old = word
      if old.state != .waiting || change(old, to: old.with(.idle)) { return }
    }
  }
}
