	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
flip:
	.file	1 "." "flip.py"
	.loc	1 11 0
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	.loc	1 11 11 prologue_end
	s_load_dwordx4 s[8:11], s[0:1], 0x8
	v_readfirstlane_b32 s0, v0
	s_andn2_b32 s0, s0, 63
	s_mov_b32 s7, 0x27000
	v_and_or_b32 v1, v0, 48, s0
	v_lshrrev_b32_e32 v32, 4, v1
	v_lshlrev_b32_e32 v0, 2, v0
	v_sub_u32_e32 v3, 63, v32
	v_and_b32_e32 v33, 60, v0
	s_waitcnt lgkmcnt(0)
	v_mad_u64_u32 v[0:1], s[0:1], s8, v3, 0
	v_mov_b32_e32 v2, v1
	v_sub_u32_e32 v13, 47, v32
	v_sub_u32_e32 v21, 31, v32
	v_sub_u32_e32 v29, 15, v32
	v_mad_u64_u32 v[2:3], s[0:1], s9, v3, v[2:3]
	v_mov_b32_e32 v1, v2
	v_mad_u64_u32 v[2:3], s[0:1], s10, v33, 0
	v_mad_u64_u32 v[10:11], s[2:3], s8, v13, 0
	v_mad_u64_u32 v[18:19], s[2:3], s8, v21, 0
	v_mad_u64_u32 v[26:27], s[2:3], s8, v29, 0
	v_mov_b32_e32 v4, v3
	v_mov_b32_e32 v12, v11
	v_mov_b32_e32 v20, v19
	v_mov_b32_e32 v28, v27
	v_mad_u64_u32 v[4:5], s[0:1], s11, v33, v[4:5]
	v_mad_u64_u32 v[12:13], s[2:3], s9, v13, v[12:13]
	v_mad_u64_u32 v[20:21], s[2:3], s9, v21, v[20:21]
	v_mad_u64_u32 v[28:29], s[2:3], s9, v29, v[28:29]
	v_mov_b32_e32 v3, v4
	v_mov_b32_e32 v11, v12
	v_mov_b32_e32 v19, v20
	v_mov_b32_e32 v27, v28
	v_lshl_add_u64 v[0:1], v[0:1], 2, s[4:5]
	v_lshlrev_b64 v[2:3], 2, v[2:3]
	v_lshl_add_u64 v[10:11], v[10:11], 2, s[4:5]
	v_lshl_add_u64 v[18:19], v[18:19], 2, s[4:5]
	v_lshl_add_u64 v[26:27], v[26:27], 2, s[4:5]
	v_lshl_add_u64 v[0:1], v[0:1], 0, v[2:3]
	s_lshl_b64 s[0:1], s[10:11], 2
	v_lshl_add_u64 v[10:11], v[10:11], 0, v[2:3]
	v_lshl_add_u64 v[18:19], v[18:19], 0, v[2:3]
	v_lshl_add_u64 v[2:3], v[26:27], 0, v[2:3]
	v_lshl_add_u64 v[4:5], v[0:1], 0, s[0:1]
	v_lshl_add_u64 v[12:13], v[10:11], 0, s[0:1]
	v_lshl_add_u64 v[20:21], v[18:19], 0, s[0:1]
	v_lshl_add_u64 v[26:27], v[2:3], 0, s[0:1]
	v_lshl_add_u64 v[6:7], v[4:5], 0, s[0:1]
	v_lshl_add_u64 v[14:15], v[12:13], 0, s[0:1]
	v_lshl_add_u64 v[22:23], v[20:21], 0, s[0:1]
	v_lshl_add_u64 v[28:29], v[26:27], 0, s[0:1]
	v_lshl_add_u64 v[8:9], v[6:7], 0, s[0:1]
	v_lshl_add_u64 v[16:17], v[14:15], 0, s[0:1]
	v_lshl_add_u64 v[24:25], v[22:23], 0, s[0:1]
	v_lshl_add_u64 v[30:31], v[28:29], 0, s[0:1]
	.loc	1 11 5 is_stmt 0
	global_load_dword v34, v[0:1], off
	global_load_dword v35, v[4:5], off
	global_load_dword v36, v[6:7], off
	global_load_dword v37, v[8:9], off
	global_load_dword v38, v[10:11], off
	global_load_dword v39, v[12:13], off
	global_load_dword v40, v[14:15], off
	global_load_dword v41, v[16:17], off
	global_load_dword v42, v[18:19], off
	global_load_dword v43, v[20:21], off
	global_load_dword v44, v[22:23], off
	global_load_dword v45, v[24:25], off
	global_load_dword v46, v[2:3], off
	global_load_dword v47, v[26:27], off
	global_load_dword v48, v[28:29], off
	global_load_dword v49, v[30:31], off
	s_add_u32 s0, s10, s8
	s_addc_u32 s1, s11, s9
	s_mulk_i32 s1, 0xfc
	s_mul_hi_u32 s2, s0, 0xfc
	s_add_i32 s2, s2, s1
	s_mulk_i32 s0, 0xfc
	s_add_u32 s0, s0, 4
	s_addc_u32 s1, s2, 0
	v_mov_b64_e32 v[0:1], 0x7fffffff
	v_cmp_lt_u64_e32 vcc, s[0:1], v[0:1]
	s_and_b64 s[2:3], vcc, exec
	v_mul_lo_u32 v0, s8, v32
	v_lshlrev_b32_e32 v1, 2, v33
	s_cselect_b32 s6, s0, 0x7fffffff
	s_and_b32 s5, s5, 0xffff
	v_lshl_add_u32 v0, v0, 2, v1
	s_lshl_b32 s0, s8, 6
	s_waitcnt vmcnt(12)
	buffer_store_dwordx4 v[34:37], v0, s[4:7], 0 offen
	v_add_u32_e32 v0, s0, v0
	s_waitcnt vmcnt(9)
	buffer_store_dwordx4 v[38:41], v0, s[4:7], 0 offen
	v_add_u32_e32 v0, s0, v0
	s_waitcnt vmcnt(6)
	buffer_store_dwordx4 v[42:45], v0, s[4:7], 0 offen
	v_add_u32_e32 v0, s0, v0
	s_waitcnt vmcnt(3)
	buffer_store_dwordx4 v[46:49], v0, s[4:7], 0 offen
	.loc	1 11 11
	s_endpgm
	.amdhsa_kernel flip
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_next_free_vgpr 50
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
	.end_amdhsa_kernel
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .name:           c
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .name:           c.0
        .offset:         8
        .size:           8
        .value_kind:     by_value
      - .name:           c.1
        .offset:         16
        .size:           8
        .value_kind:     by_value
    .max_flat_workgroup_size: 256
    .name:           flip
    .uses_dynamic_stack: false
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
