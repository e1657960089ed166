module sampling

go 1.26

require (
	k8s.io/client-go v0.36.3
	k8s.io/cri-streaming v0.36.3
)
