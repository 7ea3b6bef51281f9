# What /etc/smolet/config.yaml has no field for: more arguments of `smolet run` (man smolet-run). Read by OpenRC's script.
#SMOLET_EXTRA_ARGS="--node-name gateway-7 --log-level debug"
SMOLET_EXTRA_ARGS=""
