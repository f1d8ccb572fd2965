import Synchronization

// What the shipped ThreadLock.swift names: the kernel's futex.

/// The virtual threads that sleep on a word, by the location of the word.
enum Futex {
  // Sound because virtual threads run on one thread. Each model with a ThreadLock begins without sleepers.
  nonisolated(unsafe) static var sleepers: [Int: [Gate]] = [:]
}

/// Compares and falls asleep in one step, as the kernel does.
func clinux_futex_wait(_ word: UnsafePointer<UInt32>, _ expected: UInt32, _ nanoseconds: UInt64) -> Bool {
  let atomic = UnsafeRawPointer(word).assumingMemoryBound(to: Atomic<UInt32>.self)
  guard atomic.pointee.load(ordering: .relaxed) == expected else { return true }
  let awake = Gate()
  Futex.sleepers[atomic.pointee.location, default: []].append(awake)
  awake.pass()
  return true
}

func clinux_futex_wake(_ word: UnsafePointer<UInt32>) {
  let atomic = UnsafeRawPointer(word).assumingMemoryBound(to: Atomic<UInt32>.self)
  // A place to switch at: others may run between the change of the word and the wake-up.
  _ = atomic.pointee.load(ordering: .relaxed)
  guard let first = Futex.sleepers[atomic.pointee.location]?.first else { return }
  Futex.sleepers[atomic.pointee.location]?.removeFirst()
  first.open()
}

/// The models check what locks protect, not for how long they are held.
enum LockCheck {
  enum Operation { case threadLock }
  static func noSpinLock(_ operation: Operation) {}
  static func threadLockTaken() {}
  static func threadLockLeft() {}
  static func putAside() -> Int { 0 }
  static func takeBack(_ held: Int) {}
}
