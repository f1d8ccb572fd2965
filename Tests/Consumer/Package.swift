// swift-tools-version:6.3
import PackageDescription

// Programs that depend on the product Coroutine as any other package would. scripts/consumer builds them optimised,
// runs them, and checks that nothing else is fetched. They enable no upcoming features: clients must not need those
// that the library uses. The other folders of Sources stand below the README's manifest there, in a build of their own.
let package = Package(
  name: "consumer",
  dependencies: [
    // The name is given because the folder may be called anything.
    .package(name: "coroutine", path: "../..")
  ],
  targets: [
    .executableTarget(
      name: "Consumer",
      dependencies: [.product(name: "Coroutine", package: "coroutine")]
    ),
    // Linked with --static-swift-stdlib.
    .executableTarget(name: "Static", dependencies: [.product(name: "Coroutine", package: "coroutine")]),
  ],
  swiftLanguageModes: [.v6]
)
