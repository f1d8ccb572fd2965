public import CCoroutine
import Glibc
public import Synchronization

// The one lock of the package: a word that is taken by an exchange and given back by a store. A lock that one scheduler alone has
// used for a while is biased to it: that scheduler then enters and leaves by plain stores, and the first other user revokes the
// bias, once for all.
//
//   word
//                    exchange, found FREE                    used LIMIT times in a row by one scheduler
//   FREE 0  ------------------------------------->  HELD 1  ------------------------------------------->  BIASED 2
//           <-------------------------------------          <-------------------------------------------
//                    store                                   exchange, found BIASED: revoke
//
//   owner    nobody 0 ─> candidate (a key without its low bit) ─> biased (a key) ─> `shared`, for ever
//   inside   1 while the owner of a bias is, or may be, in a critical section; written on that scheduler's turn alone
//   uses     how often in a row the candidate has had the lock
//
// Invariants
//  1. A key names one scheduler for ever; keys are never used again. Only code on that scheduler's turn has its key (Turn.lockKey),
//     and turns of one scheduler are serial, each seeing what the one before did. Hence the owner of a bias needs nothing to
//     exclude itself.
//  2. `owner` and `uses` are written by who holds the word (HELD). A lock is biased at most once in its life: after `shared` no
//     key is stored. Hence `inside` has one writer.
//  3. HELD and a biased owner in its critical section exclude each other.
//
// Why 3 holds. The owner stores `inside` = 1 and then loads `owner`; the revoker stores `owner` = shared and then loads `inside`. One
// of the two must see the other's store. On the owner's side nothing but the compiler is kept from reordering; the revoker calls
// `cco_fence_all`, which makes every thread of the process pass a full fence at some point between its two accesses. If the
// owner's thread passes it after its store, the revoker sees `inside` = 1 and waits until it is 0. If it passes it before its store,
// its load comes after the fence and finds `shared`: it clears `inside` and takes the word like everyone else.
// The revoker's wait acquires what the owner's last `inside` = 0 released; the owner's later exchange acquires what the revoker
// releases. Two revokers: the exchange lets one find BIASED, the other waits for the word.
//
// What it costs. A revocation is one system call, 0.2 to 5 µs, as much as some hundred exchanges. LIMIT is such a number, so
// a lock that is biased in vain has at most about doubled what its uses have cost so far; and it happens once for each lock. Locks that
// live shortly are never biased. Where the kernel has no membarrier no lock is.

/// The one lock of the package; see the head of this file.
///
/// Critical sections are a handful of instructions that touch lists and words; foreign code never runs inside and no
/// switch happens inside. Under contention it spins briefly and then yields the processor, so a holder that lost its time
/// slice is not waited for at full speed. Built on `Atomic` because ThreadSanitizer sees that (it does not see
/// `Synchronization.Mutex` on Linux), and because an uncontended pair costs half of a pthread mutex.
@usableFromInline
struct SpinLock: ~Copyable, Sendable {
  @usableFromInline let word = Atomic<UInt8>(0)
  @usableFromInline let inside = Atomic<UInt8>(0)
  @usableFromInline let uses = Atomic<UInt16>(0)
  @usableFromInline let owner = Atomic<UInt32>(0)

  /// `owner` of a lock that is never biased again: no key, since keys are odd.
  @usableFromInline static var shared: UInt32 { .max - 1 }
  /// How often in a row one scheduler must have had a lock before it is biased.
  @usableFromInline static var limit: UInt16 { 1_024 }

  @inlinable init() {}

  /// For those that have no key at hand, or use a lock too seldom for a bias to pay.
  @inlinable @inline(__always)
  borrowing func lock() {
    let found = word.exchange(1, ordering: .acquiring)
    if found != 0 { lockContended(found) }
  }

  @inlinable @inline(__always)
  borrowing func unlock() {
    word.store(0, ordering: .releasing)
  }

  @inlinable @inline(__always)
  borrowing func withLock<Output: ~Copyable>(_ body: () -> Output) -> Output {
    lock()
    defer { unlock() }
    return body()
  }

  /// Takes the lock; `key` is that of the calling code's turn.
  ///
  /// Returns how it is to be given back: `unlock` takes it.
  @inlinable @inline(__always)
  borrowing func lock(as key: LockKey) -> LockHold { enterBiased(key) ? .biased : lockUnbiased(key) }

  /// Enters a lock that is biased to `key`; false: it is not, or not any more.
  @inlinable @inline(__always)
  borrowing func enterBiased(_ key: LockKey) -> Bool {
    guard owner.load(ordering: .relaxed) == key.word else { return false }
    inside.store(1, ordering: .relaxed)
    cco_compiler_fence()
    if owner.load(ordering: .relaxed) == key.word { return true }
    inside.store(0, ordering: .releasing)
    return false
  }

  @inlinable @inline(__always)
  borrowing func leaveBiased() { inside.store(0, ordering: .releasing) }

  /// As `lock(as:)`, of a lock that is not biased to `key`.
  ///
  /// Not inlined: beside the exchange a call is little, and the biased path needs the fewer registers.
  @usableFromInline @inline(never)
  borrowing func lockUnbiased(_ key: LockKey) -> LockHold {
    let found = word.exchange(1, ordering: .acquiring)
    if found != 0 { lockContended(found) }
    return owner.load(ordering: .relaxed) == Self.shared ? .exclusive : countUse(key)
  }

  @inlinable @inline(__always)
  borrowing func withLock<Output: ~Copyable>(as key: LockKey, _ body: () -> Output) -> Output {
    let hold = lock(as: key)
    defer { unlock(hold) }
    return body()
  }

  /// Gives back what `lock(as:)` has taken.
  @inlinable @inline(__always)
  borrowing func unlock(_ hold: LockHold) {
    if hold == .biased { leaveBiased() } else { word.store(0, ordering: .releasing) }
  }

  /// Under the lock: notes who has it, and after enough uses in a row biases it.
  private borrowing func countUse(_ key: LockKey) -> LockHold {
    guard owner.load(ordering: .relaxed) == key.candidate else {
      owner.store(key.candidate, ordering: .relaxed)
      uses.store(1, ordering: .relaxed)
      return .exclusive
    }
    let count = uses.load(ordering: .relaxed) &+ 1
    uses.store(count, ordering: .relaxed)
    guard count >= Self.limit else { return .exclusive }
    guard key != .none, cco_can_fence_all() else {
      owner.store(Self.shared, ordering: .relaxed)
      return .exclusive
    }
    // The critical section goes on as one of the owner: who finds BIASED sees it by the releasing store.
    inside.store(1, ordering: .relaxed)
    owner.store(key.word, ordering: .relaxed)
    word.store(2, ordering: .releasing)
    return .biased
  }

  /// `found`: what the exchange has found instead of FREE.
  @usableFromInline @inline(never)
  borrowing func lockContended(_ found: UInt8) {
    var found = found
    var rounds = 0
    while found == 1 {
      while word.load(ordering: .relaxed) == 1 { Self.pause(&rounds) }
      found = word.exchange(1, ordering: .acquiring)
    }
    if found == 2 { revoke() }
  }

  /// With the word HELD, which was BIASED: ends the bias and waits until its owner is outside.
  private borrowing func revoke() {
    owner.store(Self.shared, ordering: .releasing)
    cco_fence_all()
    var rounds = 0
    while inside.load(ordering: .acquiring) != 0 { Self.pause(&rounds) }
  }

  /// So many rounds no holder in a forked child takes, whose coroutines do not run.
  private static var hopeless: Int { 1_000_000 }

  private static func refuseOrphaned() -> Never {
    misuse(
      """
      a forked child has used something of Coroutine that a thread of its parent was using at the fork; call exec or \
      _exit in the child, or use generators that were made in it
      """
    )
  }

  private static func pause(_ rounds: inout Int) {
    rounds += 1
    if rounds > 60 { sched_yield() }
    if rounds > hopeless, cco_facts.forked != 0 { refuseOrphaned() }
  }
}

/// How a lock was taken, and so how it is given back.
@usableFromInline
enum LockHold: UInt8 { case exclusive, biased }

/// Names a scheduler to the locks that its jobs use.
@usableFromInline
struct LockKey: Equatable {
  /// Odd, so that it differs from every candidate.
  @usableFromInline let word: UInt32

  @inlinable
  init(word: UInt32) { self.word = word }

  /// Of code that runs on no scheduler's turn: no lock is ever biased to it.
  @inlinable static var none: LockKey { LockKey(word: 1) }

  @inlinable var candidate: UInt32 { word & ~1 }

  /// Of the calling code.
  @inlinable static var current: LockKey {
    @inline(__always) get { Turn.current?.pointee.lockKey ?? .none }
  }

  /// A new scheduler's.
  ///
  /// When all numbers are used up, which takes two thousand million schedulers, the rest go without.
  static func make() -> LockKey {
    let number = made.wrappingAdd(1, ordering: .relaxed).newValue
    return number < UInt64(SpinLock.shared >> 1) ? LockKey(word: UInt32(number) << 1 | 1) : .none
  }

  private static let made = Atomic<UInt64>(0)
}
