/// What the shipped files of this target get instead of the package's lock: a thread that waits for it is not runnable.
///
/// To release is no place to switch at: it can only let others run, and those may as well run before the next
/// operation.
@usableFromInline
struct SpinLock: ~Copyable, @unchecked Sendable {
  // Sound because virtual threads run on one thread.
  private let word: UnsafeMutablePointer<UInt8>
  private let location = newLocation()

  /// One look, which a schedule can put anywhere, stands for all.
  static var spins: Int { 1 }

  static func refuseOrphaned() -> Never { fatalError("no model has a forked child") }

  @usableFromInline
  init() {
    word = .allocate(capacity: 1)
    word.initialize(to: 0)
  }

  deinit { word.deallocate() }

  @usableFromInline
  func lock(function: StaticString = #function) {
    let isOpen = Explorer.current?.fault?.ignoresLock(function) ?? false
    Explorer.current?.step(.lock, function, location, gate: isOpen ? nil : UnsafePointer(word))
    word.pointee = 1
  }

  @usableFromInline
  func unlock() { word.pointee = 0 }

  @usableFromInline
  func withLock<Output: ~Copyable>(_ body: () -> Output) -> Output {
    lock()
    defer { unlock() }
    return body()
  }
}
