import Synchronization

// The two orders in which a select visits its cases. Each is stored in the waiters, one byte a case, so that it needs
// no memory of its own. All is inlined, because it is a part of every select.

/// The objects of a select by the addresses of their locks, each lock once.
///
/// All selects take locks in this order, so no cycle of selects can form.
struct LockOrder {
  private let waiters: SelectWaiterRef
  /// The number of locks.
  private let count: Int

  /// Sorts the locks of `cases` cases by insertion: there are few, and most often they are in order already.
  @inline(__always)
  init(_ waiters: SelectWaiterRef, _ cases: Int) {
    var locks = 0
    next: for index in 0..<cases {
      guard let lock = waiters[index].source.pointee.lock else { continue }
      var position = locks
      while position > 0 {
        let before = waiters[Int(waiters[position - 1].locked)].lock
        if before == lock { continue next }
        if before < lock { break }
        position -= 1
      }
      var shifted = locks
      while shifted > position {
        waiters[shifted].locked = waiters[shifted - 1].locked
        shifted -= 1
      }
      waiters[position].locked = UInt8(truncatingIfNeeded: index)
      locks += 1
    }
    self.waiters = waiters
    count = locks
  }

  /// The first case, in the order of the cases, that has the lock at `position`.
  private subscript(position: Int) -> SelectWaiterRef {
    @inline(__always) get { waiters + Int(waiters[position].locked) }
  }

  @inline(__always)
  func lock() {
    for position in 0..<count { self[position].pointee.lock.pointee.lock() }
  }

  @inline(__always)
  func unlock() {
    for position in 0..<count { self[position].pointee.lock.pointee.unlock() }
  }

  /// The address of the object that has the first lock, 0 without locks: a dump takes that lock to read the cases.
  var firstTarget: UInt {
    @inline(__always) get {
      let target = count > 0 ? self[0].pointee.source.pointee.target : nil
      return UInt(bitPattern: target.map { Unmanaged.passUnretained($0).toOpaque() })
    }
  }
}

/// The cases of a select in the order of their attempts: as given when biased, otherwise any order, each with equal
/// probability (Fisher and Yates).
struct AttemptOrder {
  private let waiters: SelectWaiterRef
  /// The number of cases.
  let count: Int

  @inline(__always)
  init(
    _ waiters: SelectWaiterRef,
    _ count: Int,
    _ biased: Bool,
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef
  ) {
    self.waiters = waiters
    self.count = count
    for index in 0..<count { waiters[index].attempted = UInt8(truncatingIfNeeded: index) }
    if biased || count < 2 { return }
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    // Not the host itself: it would be retained, for two atomics in each select.
    let hostChooses = scheduler._withUnsafeGuaranteedRef { $0.host.controlsOrder }
    var random = carrier.pointee.drawNumber()
    for index in stride(from: count - 1, to: 0, by: -1) {
      let other: Int
      if hostChooses {
        other = index - scheduler._withUnsafeGuaranteedRef { $0.host.choose(index + 1) }
      } else {
        other = Int(((random >> 32) &* UInt64(index + 1)) >> 32)
        random = random &* 0x5851_F42D_4C95_7F2D &+ 0x1405_7B7E_F767_814F
      }
      (waiters[index].attempted, waiters[other].attempted) = (waiters[other].attempted, waiters[index].attempted)
    }
  }

  /// The index of the case that is attempted at `position`.
  @inline(__always)
  func index(at position: Int) -> Int { Int(waiters[position].attempted) }

  subscript(position: Int) -> SelectWaiterRef {
    @inline(__always) get { waiters + index(at: position) }
  }
}

extension SelectWaiter {
  /// The lock of the case's object.
  var lock: UnsafePointer<SpinLock> {
    @inline(__always) get { source.pointee.lock.unsafelyUnwrapped }
  }
}
