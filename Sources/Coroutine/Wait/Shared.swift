public import CCoroutineRuntime

// The words of an object that coroutines share. A use of them tells a simulated world, because there is no other way to
// them.
//
// An exhaustive search leaves out schedules that differ only in the order of independent steps
// (ExhaustiveSearch.swift). Two steps are independent if they use no common object (Point.swift). So a use that
// the world does not see makes the search leave out an outcome. A use of the words is one of two:
//
//   touched   `touched`, `lock`, `withLock`: tells the world, and then gives the words. The ordinary use.
//   known     `known`: gives the words. It says in the code that the world need not be told, for one of these reasons:
//               the same call has told it (a wait names its object: `Carrier.beginWaiting(for:)`; an earlier line has
//               touched it); the step follows such a use, and cannot be exchanged with it (an unlock, a withdrawal); a
//               dump reads the state; or the order of the uses has no visible effect, and a comment says why.
//
// An object is identified by the address of its words, which is that of the `Shared`. All words of one object that show
// the same state are in one `Shared`, so a read of one and a change of another are uses of one object. To tell the
// world twice changes nothing. Reads and writes are not distinguished: a read makes steps dependent, as a write does.
//
// The world stores the uses in sets, which allocates. So the first use of an object in a step is not made under a
// spin lock: `lock` tells the world before it locks.
//
// The locks of the runtime itself (queues, timers, the poller, tables of threads) are not in a `Shared`: nearly every
// step takes one of them, and then no two steps would be independent. `make lint` finds a lock or an atomic word in the
// folders of public objects that is not in a `Shared` and does not say why.

// Words contain an Atomic. So they have one address, and a borrow of them passes it: the compiler makes no copy.
@usableFromInline
struct Shared<Words: ~Copyable>: ~Copyable {
  /// The words, for a use that the world need not be told of.
  @usableFromInline let known: Words

  @inlinable @inline(__always)
  init(_ words: consuming Words) { known = words }

  /// The address by which a world knows the object.
  @inlinable var id: UInt {
    @inline(__always) get { withUnsafePointer(to: known) { UInt(bitPattern: $0) } }
  }

  /// The words, after the world has been told.
  @inlinable var touched: Words {
    @inline(__always) _read {
      touch()
      yield known
    }
  }

  /// Tells a simulated world that the current step uses the object; in a process without worlds, it only loads a
  /// word that does not change.
  @inlinable @inline(__always)
  borrowing func touch() { if cco_has_worlds() { Host.recordTouch(id) } }
}

// Sound because `known` is a constant.
extension Shared: Sendable where Words: ~Copyable & Sendable {}

extension Shared where Words == SpinLock {
  @inlinable @inline(__always)
  init() { self.init(SpinLock()) }

  @inlinable @inline(__always)
  borrowing func lock() {
    touch()
    known.lock()
  }

  @inlinable @inline(__always)
  borrowing func unlock() { known.unlock() }

  @inlinable @inline(__always)
  borrowing func withLock<Output: ~Copyable>(_ body: () -> Output) -> Output {
    touch()
    return known.withLock(body)
  }
}

extension Shared where Words == ThreadLock {
  init() { self.init(ThreadLock()) }

  borrowing func lock() {
    touch()
    known.lock()
  }

  borrowing func unlock() { known.unlock() }

  borrowing func withLock<Output: ~Copyable, Failure>(_ body: () throws(Failure) -> Output) throws(Failure) -> Output {
    touch()
    return try known.withLock(body)
  }
}
