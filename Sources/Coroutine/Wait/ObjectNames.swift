// The names that programs give to channels, locks, limiters and promises, for dumps.
//
// A table by address, so that an object without a name pays one byte. An object that has one is marked, and its deinit
// removes the name: until then no other object can have the address.

enum ObjectNames {
  // Not shared: only dumps read it.
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var names: [UInt: String] = [:]

  private static func address(of object: AnyObject) -> UInt {
    UInt(bitPattern: Unmanaged.passUnretained(object).toOpaque())
  }

  /// Gives an object a name, in place of the one that it had.
  static func set(_ name: String, of object: AnyObject) {
    lock.lock()
    let old = names.updateValue(name, forKey: address(of: object))
    lock.unlock()
    // Not released under the lock.
    withExtendedLifetime(old) {}
  }

  static func name(of object: AnyObject) -> String? { lock.withLock { names[address(of: object)] } }

  /// Called by the deinit of a marked object.
  static func remove(_ object: AnyObject) {
    lock.lock()
    let old = names.removeValue(forKey: address(of: object))
    lock.unlock()
    withExtendedLifetime(old) {}
  }
}
