internal import CCoroutine

/// One binding, in an immutable list that launched coroutines share with their launcher.
@usableFromInline
final class LocalBinding: Sendable {
  let key: ObjectIdentifier
  let value: any Sendable
  let outer: LocalBinding?

  init(key: ObjectIdentifier, value: any Sendable, outer: LocalBinding?) {
    self.key = key
    self.value = value
    self.outer = outer
  }

  /// The head that is in force here: the coroutine's, else the thread's.
  static var current: LocalBinding? {
    if let job = Carrier.current?.pointee.job { return job.pointee.locals?.takeUnretainedValue() }
    guard let head = cco_thread().pointee.locals else { return nil }
    return Unmanaged<LocalBinding>.fromOpaque(head).takeUnretainedValue()
  }

  @usableFromInline
  static func currentRetained() -> Unmanaged<LocalBinding>? { current.map(Unmanaged.passRetained) }

  /// Makes `head` the list in force here, which takes over one reference, and returns the old one with its reference.
  static func exchange(_ head: Unmanaged<LocalBinding>?) -> Unmanaged<LocalBinding>? {
    if let job = Carrier.current?.pointee.job {
      let old = job.pointee.locals
      job.pointee.locals = head
      return old
    }
    let old = cco_thread().pointee.locals
    cco_thread().pointee.locals = head?.toOpaque()
    return old.map { Unmanaged.fromOpaque($0) }
  }
}

/// A value that is bound for an extent: in a coroutine for `withValue`'s body and all that is launched in it, wherever
/// that runs; off a coroutine for the calling thread's extent and all launched in it.
///
/// Coroutines never see one another's bindings. Reading costs a walk over the bindings in force, usually a few.
public final class CoroutineLocal<Value: Sendable>: Sendable {
  private let defaultValue: Value

  /// Creates a local that has `value` where nothing is bound.
  public init(default value: Value) { defaultValue = value }

  /// The value in force here.
  ///
  /// Anywhere, does not suspend.
  public var value: Value {
    let key = ObjectIdentifier(self)
    var binding = LocalBinding.current
    while let current = binding {
      // The cast cannot fail: only `withValue` of this very object makes bindings with its identity.
      if current.key == key { return (current.value as? Value) ?? defaultValue }
      binding = current.outer
    }
    return defaultValue
  }

  /// Binds `value` while `body` runs.
  ///
  /// `body` may suspend and go on on another thread; the binding stays with the coroutine.
  public func withValue<Output>(_ value: Value, _ body: () throws -> Output) rethrows -> Output {
    let binding = LocalBinding(key: ObjectIdentifier(self), value: value, outer: LocalBinding.current)
    let outer = LocalBinding.exchange(Unmanaged.passRetained(binding))
    defer { LocalBinding.exchange(outer)?.release() }
    return try withExtendedLifetime(self) { try body() }
  }
}
