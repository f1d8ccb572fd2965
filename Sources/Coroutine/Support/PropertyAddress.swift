/// Returns the address of a stored property, `offset` bytes behind an object's header.
///
/// For properties that several threads use at the same time: a pointer made by an inout access would claim the property
/// for ever. The address is not stored in the object; the class that declares such a property checks the address once,
/// in its `init`. The address does not keep the object alive: a coroutine that waits through it holds the object until
/// the wait is over.
// Sound because an object does not move, and its stored properties are laid out in the order of their declaration.
@inlinable @inline(__always)
func propertyAddress<Value: ~Copyable>(
  in object: AnyObject,
  at offset: Int,
  as type: Value.Type
) -> UnsafeMutablePointer<Value> {
  Unmanaged.passUnretained(object).toOpaque().advanced(by: objectHeader + offset).assumingMemoryBound(to: type)
}

/// Returns the object that contains a property, the inverse of `propertyAddress`.
// Sound for the same reason, for a property whose address comes from `propertyAddress`.
@inlinable @inline(__always)
func object<Object: AnyObject>(holding property: UnsafeRawPointer, at offset: Int) -> Unmanaged<Object> {
  Unmanaged.fromOpaque(property.advanced(by: -(objectHeader + offset)))
}

/// The size of an object's header: the type and the reference counts.
@inlinable var objectHeader: Int { 2 * MemoryLayout<UInt>.size }

/// Checks that `address` is the property's address; called in the `init` of the class that declares the property.
@inlinable @inline(__always)
func checkAddress<Value: ~Copyable>(_ address: UnsafeMutablePointer<Value>, of property: inout Value) {
  let actual = withUnsafeMutablePointer(to: &property) { $0 }
  if actual != address { misuse("a stored property does not lie where its object's address says") }
}
