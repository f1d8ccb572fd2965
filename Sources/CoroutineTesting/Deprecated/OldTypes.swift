// Old names of types that are nested in others now. Each stays for one release.

/// The old name of ``Exploration/Strategy``.
@available(*, deprecated, renamed: "Exploration.Strategy")
public typealias Strategy = Exploration.Strategy

/// The old name of ``Exploration/Sharing``.
@available(*, deprecated, renamed: "Exploration.Sharing")
public typealias Sharing = Exploration.Sharing

/// The old name of ``World/Network``.
@available(*, deprecated, renamed: "World.Network")
public typealias Network = World.Network
